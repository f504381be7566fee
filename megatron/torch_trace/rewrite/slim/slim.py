# SPDX-License-Identifier: Apache-2.0
"""`slim`: write a smaller trace, or a repaired one, in one pass and constant memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from megatron.torch_trace.columns.block_times import block_times
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.unchanged import Unchanged
from megatron.torch_trace.files.writer import STDOUT, OutputFile, TraceWriter
from megatron.torch_trace.format.step_names import MENTION, marks_a_step
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.reader import (
    ByteStream,
    Damage,
    EventBlock,
    Metadata,
    SlimEvent,
    Trace,
)
from megatron.torch_trace.reader.cutter import Cutter
from megatron.torch_trace.reader.event import Identity
from megatron.torch_trace.reader.metadata import OWN_KEY
from megatron.torch_trace.rewrite.category_totals import Account, count
from megatron.torch_trace.rewrite.selection import Selection, absent_categories
from megatron.torch_trace.rewrite.slim.block_slim import BlockSlimmer, Ranges, SlimPart
from megatron.torch_trace.rewrite.slim.pending_events import Launched, PendingEvents
from megatron.torch_trace.rewrite.slim.undecoded_blocks import FirstReading, read_first
from megatron.torch_trace.rewrite.tracks.track_plan import TrackPlan, plan_tracks

OnRead = Callable[[int], None]

_FEW_BLOCKS = 32
"""So many are changed sooner by one process than shared out to several."""


@dataclass(slots=True)
class SlimResult:
    """What `slim` did.

    Attributes:
        before, after: category -> [events, bytes of text].
        raw_bytes: uncompressed size of the input.
        written_bytes: uncompressed size of the output.
        damage: what was wrong with the input.
        moved_annotations, moved_crossing: slices that were given a track of their own.
        clipped: GPU work that overran the next one of its stream by more than a second.
        absent: categories that the user named and the trace lacks.
    """

    before: Account = field(default_factory=dict)
    after: Account = field(default_factory=dict)
    raw_bytes: int = 0
    written_bytes: int = 0
    damage: Damage = field(default_factory=Damage)
    moved_annotations: int = 0
    moved_crossing: int = 0
    clipped: int = 0
    absent: tuple[str, ...] = ()


def slim(
    path: Path | str,
    output: Path | str,
    selection: Selection = Selection(),  # noqa: B008  (frozen)
    *,
    force: bool = False,
    strict: bool = False,
    workers: int = 1,
    on_read: OnRead | None = None,
) -> SlimResult:
    """Write what `selection` keeps of a trace to `output`; with no selection, all of it, repaired.

    Metadata, names and sort order stay. Arrows that have lost an end, or never had both, go.

    Args:
        path: a trace, or a merged one.
        output: `.gz` and `.zst` are compressed; `-` is standard output.
        force: replace an existing output.
        strict: raise StrictError at the first fault of the input and write nothing.
        workers: processes to use.
        on_read: called with the number of input bytes of each piece read, for progress.

    Raises:
        UsageError: a step or a category that is not there, an output that exists, ...
    """
    folder = None if Path(output) == STDOUT else Path(output).absolute().parent
    sink = OutputFile(output, force=force, expected_bytes=_least_size(path))
    unchanged = Unchanged([path])
    trace = Trace(path, strict=strict, on_read=on_read)
    metadata = trace.read_header()
    record = metadata.own.get("slim")
    todo = selection.without_done(record) if isinstance(record, dict) else selection
    first = None
    if todo.separate_tracks and todo.keeps_everything and str(path) != "-":
        first = read_first(Trace(path, on_read=on_read), workers=workers, folder=folder)
        slimmer = BlockSlimmer(todo, plan=first.plan)
    else:
        slimmer = _slimmer(path, todo, metadata, workers, folder, on_read)
    result = SlimResult()
    if slimmer.plan:
        result.moved_annotations = slimmer.plan.annotations
        result.moved_crossing = slimmer.plan.crossing
        result.clipped = sum(map(len, slimmer.plan.clipped.values()))
    with sink, unchanged:
        _write(trace, sink, slimmer, first, selection, result, workers, folder)
        result.absent = absent_categories(selection.named, result.before, path)
    result.raw_bytes = trace.raw_bytes
    result.written_bytes = sink.written
    result.damage = trace.damage
    return result


def _least_size(path: Path | str) -> int:
    return 0 if str(path) == "-" or not Path(path).is_file() else Path(path).stat().st_size // 4


def _slimmer(
    path: Path | str,
    selection: Selection,
    metadata: Metadata,
    workers: int,
    folder: Path | None,
    on_read: OnRead | None,
) -> BlockSlimmer:
    first_looks = selection.steps or selection.has_range or selection.separate_tracks
    if first_looks and str(path) == "-":
        raise UsageError("-: steps, times and tracks need to read the input twice; give a file.")
    steps = _step_ranges(path, selection.steps) if selection.steps else None
    ranges = None
    if selection.has_range:
        start = find_start(path, workers=workers)
        low = start + (selection.start_ns or 0)
        high = start + selection.end_ns if selection.end_ns is not None else 1 << 62
        ranges = ((low, high),)
    plan: TrackPlan | None = None
    if selection.separate_tracks:
        trace = Trace(path, on_read=on_read)
        plan = plan_tracks(trace, workers=workers, folder=folder, clip=True)
    pids = _pids_of(selection.ranks, metadata, path) if selection.ranks is not None else None
    return BlockSlimmer(selection, ranges, steps, pids, plan)


def _pids_of(ranks: frozenset[int], metadata: Metadata, path: Path | str) -> frozenset[Identity]:
    merged = metadata.merged
    if merged is None:
        raise UsageError(f"--rank: is for merged traces, and {path} holds only one rank.")
    found = {entry["rank"]: entry["processes"] for entry in merged["ranks"]}
    missing = ranks - set(found)
    if missing:
        raise UsageError(f"--rank {min(missing)}: not in {path}, which holds {sorted(found)}.")
    return frozenset(pid for rank in ranks for pid, _ in found[rank])


def _write(
    trace: Trace,
    sink: OutputFile,
    slimmer: BlockSlimmer,
    first: FirstReading | None,
    selection: Selection,
    result: SlimResult,
    workers: int,
    folder: Path | None,
) -> None:
    writer = TraceWriter(sink)
    pending, launched = PendingEvents(folder, first.ids if first else None), Launched()
    if first:
        workers = workers if first.others > _FEW_BLOCKS else 1
        _include(result, SlimPart(before=first.account, after=first.account))
    try:
        writer.begin(_with_record(trace.metadata, selection))
        for part in trace.map(
            slimmer,
            slimmer.event_kind,
            workers=workers,
            small_results=True,
            known=first.undecoded if first else None,
        ):
            writer.add_joined(part.text)
            pending.add(part.waiting)
            pending.add_arrows(part.arrow_ends, part.arrows)
            for space, (known, inside) in part.launches.items():
                launched.add(space, known, inside)
            if first:
                _exclude(result, part)
            _include(result, part)
        for decided in pending.decided(launched):
            writer.add_joined(decided.text)
            if decided.events:
                count(result.after, decided.category, decided.size, decided.events)
        if slimmer.plan:
            writer.add(slimmer.plan.metadata)
        writer.end(_with_record(trace.metadata, selection))
    finally:
        pending.close()


def _include(result: SlimResult, part: SlimPart) -> None:
    for total, account in ((result.before, part.before), (result.after, part.after)):
        for name, (events, size) in account.items():
            count(total, name, size, events)


def _exclude(result: SlimResult, part: SlimPart) -> None:
    """The block was counted as if nothing of it changed."""
    for total in (result.before, result.after):
        for name, (events, size) in part.before.items():
            count(total, name, -size, -events)


def _with_record(metadata: Metadata, selection: Selection) -> dict[str, bytes]:
    """The metadata, with a note of what has been left out, so that nobody takes it for absent."""
    record = selection.record()
    if not record:
        return metadata.entries
    own = dict(metadata.own)
    before = own.get("slim")
    own["slim"] = _combined(before if isinstance(before, dict) else {}, record)
    return metadata.entries | {OWN_KEY: json.dumps(own).encode()}


def _combined(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    combined = {**before, **now}
    for key in ("drop",):
        if key in before and key in now:
            combined[key] = sorted({*before[key], *now[key]})
    return combined


@dataclass(frozen=True, slots=True)
class StepRange:
    """A `ProfilerStep#` annotation of the CPU: number, start and end in ns as in the file."""

    number: int
    start: int
    end: int


def find_steps(path: Path | str) -> list[StepRange]:
    """The steps of a trace, in order. Decodes only the blocks that mention one.

    Each ends where the next one starts, the last one with its annotation. A number that comes again
    is another step, as in an analysis; of a merged trace the first process counts.
    """
    found: dict[Identity, list[StepRange]] = {}
    for raw in Cutter(ByteStream(path)):
        if MENTION.encode() not in raw.text:
            continue
        block: EventBlock[SlimEvent] = EventBlock(raw, SlimEvent)
        ts, dur = block_times(block)
        for index, event in enumerate(block.events):
            number = marks_a_step(event.name, event.cat) if event.ph == "X" else None
            if number is not None and ts[index] != NO_TIME:
                start = int(ts[index])
                end = start + max(0, int(dur[index]))
                found.setdefault(event.pid, []).append(StepRange(number, start, end))
    steps: list[StepRange] = []
    for step in sorted(next(iter(found.values()), []), key=lambda one: (one.start, -one.end)):
        if not steps or step.end > steps[-1].end:
            steps.append(step)
    following = steps[1:]
    ended = [replace(step, end=after.start) for step, after in zip(steps, following)]  # noqa: B905
    return ended + steps[-1:]


def _step_ranges(path: Path | str, wanted: frozenset[int]) -> Ranges:
    steps = find_steps(path)
    numbers = {step.number for step in steps}
    missing = sorted(wanted - numbers)
    if missing:
        has = (
            f"the trace has {', '.join(map(str, sorted(numbers)))}"
            if steps
            else "the trace has no steps"
        )
        raise UsageError(f"--step {missing[0]}: {path} has no ProfilerStep#{missing[0]}; {has}.")
    return tuple((step.start, step.end) for step in steps if step.number in wanted)


def _first_start(block: EventBlock[SlimEvent]) -> int | None:
    ts, _ = block_times(block)
    slices = [
        int(start)
        for event, start in zip(block.events, ts, strict=True)
        if event.ph == "X" and start != NO_TIME and start > 0
    ]
    return min(slices, default=None)


def find_start(path: Path | str, *, workers: int = 1) -> int:
    """The start of the earliest slice, in ns as in the file; 0 if there is none."""
    starts = Trace(path).map(_first_start, SlimEvent, workers=workers, small_results=True)
    return min((start for start in starts if start is not None), default=0)
