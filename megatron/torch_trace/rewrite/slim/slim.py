# SPDX-License-Identifier: Apache-2.0
"""`slim`: write a smaller trace, or a repaired one, in one pass and constant memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.unchanged import Unchanged
from megatron.torch_trace.files.writer import STDOUT, OutputFile, TraceWriter
from megatron.torch_trace.format.json_text import text_of
from megatron.torch_trace.reader import (
    Damage,
    Metadata,
    Trace,
)
from megatron.torch_trace.reader.event import Identity
from megatron.torch_trace.reader.metadata import OWN_KEY
from megatron.torch_trace.rewrite.category_totals import Account, count
from megatron.torch_trace.rewrite.selection import (
    Selection,
    absent_categories,
    refuse_absent_streams,
)
from megatron.torch_trace.rewrite.slim.block_slim import BlockSlimmer, SlimPart
from megatron.torch_trace.rewrite.slim.pending_events import Launched, PendingEvents
from megatron.torch_trace.rewrite.slim.time_ranges import step_ranges, time_range
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
        streams: GPU streams of the trace, if the user named some.
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
    streams: set[int] = field(default_factory=set)


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

    Returns:
        What was kept: counts of events, and bytes of uncompressed JSON.

    Raises:
        UsageError: a step, time, rank or stream that is not there, or an output that exists.
        StrictError: see `strict`.
        TorchTraceError: the disk is too small, or the input changed while it was read.
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
        refuse_absent_streams(todo.named_streams(record), result.streams, path)
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
    steps = step_ranges(path, selection.steps) if selection.steps else None
    ranges = time_range(path, selection, workers=workers) if selection.has_range else None
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
            result.streams |= part.streams
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
    return metadata.entries | {OWN_KEY: text_of(own).encode()}


def _combined(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    combined = {**before, **now}
    for key in ("drop",):
        if key in before and key in now:
            combined[key] = sorted({*before[key], *now[key]})
    return combined
