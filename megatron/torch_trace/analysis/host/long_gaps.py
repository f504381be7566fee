# SPDX-License-Identifier: Apache-2.0
"""Long gaps in which the CPU launched nothing: it was busy with something other than launching."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from megatron.torch_trace.analysis.host.garbage_collections import COLLECTOR
from megatron.torch_trace.analysis.host.python_frames import function_name
from megatron.torch_trace.analysis.host.threads import Threads
from megatron.torch_trace.analysis.timeline.moment import Moment, longest
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Intervals

LONG_NS = 500_000
"""Python between two launches takes 10 to 200 us."""
_MOSTLY = 0.5


@dataclass(frozen=True, slots=True)
class LongGaps:
    """Gaps of 0.5 ms and more.

    Args:
        pieces, time_ns: how many, and their time.
        function: `COLLECTOR`, or the innermost Python function that the CPU was in, with all that
            it calls, for more than half of that time; None if there is none, or the trace has no
            stacks.
        function_ns: for how long.
        longest: the longest gap.
    """

    pieces: int
    time_ns: int
    function: str | None
    function_ns: int
    longest: Moment | None = field(default=None, compare=False)


def long_gaps(
    timeline: Timeline, held: Iterable[tuple[Threads, Intervals, Intervals]]
) -> LongGaps | None:
    """Sum them up; None if there are none.

    Args:
        held: groups of threads, when the GPU waited for their launches, and when they collected
            garbage.
    """
    groups = [(group, _long(idle), stops) for group, idle, stops in held]
    everything = Intervals.of(
        np.concatenate([idle.starts for _, idle, _ in groups]),
        np.concatenate([idle.ends for _, idle, _ in groups]),
    )
    if not len(everything):
        return None
    time, function = _inside(timeline, groups, int(_MOSTLY * everything.total))
    return LongGaps(
        pieces=len(everything),
        time_ns=everything.total,
        function=function,
        function_ns=time,
        longest=longest(everything.starts, everything.ends),
    )


def _inside(
    timeline: Timeline, groups: Iterable[tuple[Threads, Intervals, Intervals]], most: int
) -> tuple[int, str | None]:
    """What the CPU was in for more than `most` ns, and for how long."""
    collected = sum(idle.intersect(stops).total for _, idle, stops in groups)
    if collected > most:
        return collected, COLLECTOR
    totals: dict[str, int] = {}
    for group, idle, _ in groups:
        if len(idle):
            _add(totals, timeline, group, idle)
    # Whoever calls it was in it longer: the shortest of them is the innermost.
    return min(((time, name) for name, time in totals.items() if time > most), default=(0, None))


def _long(idle: Intervals) -> Intervals:
    keep = idle.ends - idle.starts >= LONG_NS
    return Intervals.of(idle.starts[keep], idle.ends[keep])


def _add(totals: dict[str, int], timeline: Timeline, group: Threads, idle: Intervals) -> None:
    """Time of each function in these gaps, whatever of it is recursion counted once."""
    frames, names = timeline.activity.frames, timeline.activity.names
    time = idle.covered(frames.start, frames.end)
    rows = np.flatnonzero(group.frames[frames.track] & (time > 0))
    spans: dict[str, list[int]] = {}
    for row in rows.tolist():
        spans.setdefault(function_name(names[int(frames.name[row])]), []).append(row)
    for name, mine in spans.items():
        union = Intervals.of(frames.start[mine], frames.end[mine])
        totals[name] = totals.get(name, 0) + union.intersect(idle).total
