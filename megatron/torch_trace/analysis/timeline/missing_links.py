# SPDX-License-Identifier: Apache-2.0
"""GPU work whose launch no correlation tells: found by arrows and by `External id`.

Some tracers (roctracer, converters) leave the correlation out. An arrow (`ac2g`) goes from the call
to the work; else the operator, its calls and their work have one `External id`.
Such a trace is read once more; all others are not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from megatron.torch_trace.analysis.timeline.activity import NONE, Activity
from megatron.torch_trace.columns.block_times import block_times
from megatron.torch_trace.columns.intervals import Ints
from megatron.torch_trace.format.categories import GPU_WORK, LAUNCHES, category, launches_work
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.reader import EventBlock, SlimEvent, Trace

_SliceKey = tuple[object, object, int]
"""Process, thread and start of a slice."""


@dataclass(slots=True)
class BlockLinks:
    """What one block tells: slices with an `External id`, and the ends of arrows by their id."""

    gpu: list[tuple[_SliceKey, int]] = field(default_factory=list)
    calls: list[tuple[_SliceKey, int]] = field(default_factory=list)
    ops: list[tuple[_SliceKey, int]] = field(default_factory=list)
    arrows: list[tuple[object, bool, _SliceKey]] = field(default_factory=list)


def look_for_links(block: EventBlock[SlimEvent]) -> BlockLinks:
    """The function of `Trace.map`."""
    found = BlockLinks()
    tables = {"cpu_op": found.ops}
    tables.update(dict.fromkeys(GPU_WORK, found.gpu))
    tables.update(dict.fromkeys(LAUNCHES, found.calls))
    starts = block_times(block)[0].tolist()
    for event, start in zip(block.events, starts, strict=True):
        if start == NO_TIME:
            continue
        name = category(event.cat)
        key = (event.pid, event.tid, start)
        if event.ph in ("s", "f") and name == "ac2g":
            found.arrows.append((event.id, event.ph == "s", key))
        elif event.ph == "X" and name in tables and event.args and event.args.external_id:
            tables[name].append((key, event.args.external_id))
    return found


def is_unlinked(activity: Activity) -> bool:
    """Whether there is work, and what may have launched it, and most of it has no correlation."""
    gpu, calls = activity.gpu, activity.calls
    if not len(gpu) or not len(calls) + len(activity.ops):
        return False
    if not (calls.correlation > 0).any():
        return True
    return int((gpu.correlation <= 0).sum()) * 2 > len(gpu)


def link(activity: Activity, workers: int = 1) -> None:
    """Give work and the call that launched it one correlation, or the work its operator."""
    gpu, calls = activity.gpu, activity.calls
    links = BlockLinks()
    trace = Trace(activity.path)
    for part in trace.map(look_for_links, SlimEvent, workers=workers, small_results=True):
        for name in ("gpu", "calls", "ops", "arrows"):
            getattr(links, name).extend(getattr(part, name))
    rows, launches = (
        _rows(activity, gpu.track, gpu.start),
        _rows(activity, calls.track, calls.start),
    )
    call_of = _by_arrows(links.arrows, rows, launches)
    operators = _rows(activity, activity.ops.track, activity.ops.start)
    work = _by_id((key, number) for key, number in links.gpu if rows.get(key) not in call_of)
    called, made = _by_id(links.calls), _by_id(links.ops)
    names = activity.names
    for number, keys in work.items():
        mine = sorted((key for key in keys if key in rows), key=lambda key: key[2])
        own = [launches[key] for key in called.get(number, ()) if key in launches]
        own = sorted(row for row in own if launches_work(names[int(calls.name[row])]))
        for nth, key in enumerate(mine):
            if own:
                # One call for each piece of work; or one call, of a graph, for all.
                call_of[rows[key]] = own[min(nth, len(own) - 1)]
            else:
                operator = next(
                    (operators[one] for one in made.get(number, ()) if one in operators), NONE
                )
                gpu.op[rows[key]] = operator
    free = 1 + int(max(calls.correlation.max(initial=0), gpu.correlation.max(initial=0)))
    for row, call in call_of.items():
        if calls.correlation[call] <= 0:
            calls.correlation[call] = free + call
        gpu.correlation[row] = calls.correlation[call]


def _rows(activity: Activity, track: Ints, start: Ints) -> dict[_SliceKey, int]:
    tracks = activity.tracks
    keys = zip(track.tolist(), start.tolist(), strict=True)
    found: dict[_SliceKey, int] = {}
    for row, (code, at) in enumerate(keys):
        found.setdefault((*tracks[code], at), row)
    return found


def _by_arrows(
    arrows: list[tuple[object, bool, _SliceKey]],
    rows: dict[_SliceKey, int],
    calls: dict[_SliceKey, int],
) -> dict[int, int]:
    """Row of the work -> row of the call, of arrows that begin at a call and end at work."""
    begins = {number: key for number, is_begin, key in arrows if is_begin}
    found = {}
    for number, is_begin, key in arrows:
        begin = None if is_begin else begins.get(number)
        if begin is not None and key in rows and begin in calls:
            found[rows[key]] = calls[begin]
    return found


def _by_id(numbered: Iterable[tuple[_SliceKey, int]]) -> dict[int, list[_SliceKey]]:
    found: dict[int, list[_SliceKey]] = {}
    for key, number in numbered:
        found.setdefault(number, []).append(key)
    return found
