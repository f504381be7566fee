# SPDX-License-Identifier: Apache-2.0
"""`merge`: several ranks on one timeline for Perfetto, and `split`, its inverse.

Each rank's processes, tracks and ids get numbers of their own: process `(n+1)*1000 + k` for the
k-th process of the n-th rank; an id is given the rank's number as a prefix. Times are moved to one
base. What was changed stands in the file's metadata, so that the ranks can be told apart again
and nothing takes the file for the trace of a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatron.torch_trace.analysis.communication.common_timebase import RankTimes, common_timebase
from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.files.sources import RankedTrace
from megatron.torch_trace.files.unchanged import Unchanged
from megatron.torch_trace.files.writer import STDOUT, OutputFile, TraceWriter
from megatron.torch_trace.format.json_text import text_of
from megatron.torch_trace.reader import Damage, Trace
from megatron.torch_trace.reader.event import ProcessEvent
from megatron.torch_trace.reader.metadata import OWN_KEY
from megatron.torch_trace.rewrite.decompression import estimated_raw_bytes
from megatron.torch_trace.rewrite.merge.block_merge import BlockMerger
from megatron.torch_trace.rewrite.merge.rank_numbers import RankPlan, plan_rank

OnRead = Callable[[int], None]


@dataclass(slots=True)
class MergeResult:
    """What `merge` did.

    Attributes:
        offsets_ns: rank -> what was added to its clock to align it; None if nothing matched.
        notes: what the user should know, a sentence each.
        damage: of each rank's file, only where there was any.
        moved_crossing: slices that were given a lane of their own.
    """

    ranks: list[int] = field(default_factory=list)
    events: int = 0
    raw_bytes: int = 0
    written_bytes: int = 0
    offsets_ns: dict[int, int | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    damage: dict[Path, Damage] = field(default_factory=dict)
    moved_crossing: int = 0


def merge(
    traces: Sequence[RankedTrace],
    output: Path | str,
    *,
    align: bool = False,
    force: bool = False,
    strict: bool = False,
    workers: int = 1,
    on_read: OnRead | None = None,
    record: Mapping[str, object] | None = None,
) -> MergeResult:
    """Write the traces of several ranks as one.

    Args:
        traces: one of each rank, see `sources.ranked`.
        output: `.gz` and `.zst` are compressed; `-` is standard output.
        align: move each rank's clock so that collectives end together.
        on_read: called with the number of input bytes of each piece read; every file is read twice.
        record: what else the file's metadata tell of how it was made.

    Returns:
        What was written: offsets of clocks in ns, sizes in bytes of uncompressed JSON.

    Raises:
        UsageError: fewer than two ranks, or an output that exists.
        StrictError: under `strict`, an input is damaged; nothing is written.
        TorchTraceError: the disk is too small, or an input changed while it was read.
    """
    if len(traces) < 2:
        named = ", ".join(str(trace.path) for trace in traces) or "no trace"
        raise UsageError(f"{named}: merge needs the traces of at least two ranks; name them all.")
    expected = sum(estimated_raw_bytes(trace.path) for trace in traces)
    if Path(output).suffix in (".gz", ".zst"):
        expected //= 12
    sink = OutputFile(output, force=force, expected_bytes=expected)
    unchanged = Unchanged(trace.path for trace in traces)
    folder = None if Path(output) == STDOUT else Path(output).absolute().parent
    result = MergeResult(ranks=[trace.rank for trace in traces])
    plans = [
        plan_rank(
            number,
            len(traces),
            trace,
            align=align,
            workers=workers,
            folder=folder,
            on_read=on_read,
        )
        for number, trace in enumerate(traces)
    ]
    base = _on_one_timeline(plans, result, align=align)
    with sink, unchanged:
        writer = TraceWriter(sink)
        own = {
            **(record or {}),
            "merged": {"ranks": [plan.record(base) for plan in plans], "aligned": align},
        }
        entries = {
            "schemaVersion": b"1",
            OWN_KEY: text_of(own).encode(),
        }
        if base:
            entries["baseTimeNanoseconds"] = str(base).encode()
        writer.begin(entries)
        for trace, plan in zip(traces, plans, strict=True):
            _write_rank(trace, plan, writer, result, strict, workers, on_read)
        writer.end({})
    result.written_bytes = sink.written
    return result


def _write_rank(
    trace: RankedTrace,
    plan: RankPlan,
    writer: TraceWriter,
    result: MergeResult,
    strict: bool,
    workers: int,
    on_read: OnRead | None,
) -> None:
    file = Trace(trace.path, strict=strict, on_read=on_read)
    merger = BlockMerger(plan)
    for text, events in file.map(merger, ProcessEvent, workers=workers, small_results=True):
        writer.add_joined(text)
        result.events += events
    writer.add(plan.names)
    result.raw_bytes += file.raw_bytes
    result.moved_crossing += plan.tracks.crossing
    if file.damage:
        result.damage[trace.path] = file.damage


def _on_one_timeline(plans: list[RankPlan], result: MergeResult, *, align: bool) -> int:
    """Set what is added to each rank's times; returns the common base, 0 for absolute times."""
    times = {plan.rank: RankTimes(plan.base_ns, plan.first_ns, plan.calls) for plan in plans}
    timebase = common_timebase(times, align=align)
    for plan in plans:
        plan.shift_ns = timebase.absolute_ns[plan.rank] - timebase.base_ns
        plan.offset_ns = timebase.clock_ns[plan.rank] or 0
    if align:
        result.offsets_ns = timebase.clock_ns
    result.notes += timebase.notes
    return timebase.base_ns


def merged_ranks(own: dict[str, Any], path: Path | str) -> list[dict[str, Any]]:
    """The ranks of a merged file's metadata.

    Raises:
        TorchTraceError: the file is not merged.
    """
    merged = own.get("merged")
    if not isinstance(merged, dict) or not isinstance(merged.get("ranks"), list):
        raise TorchTraceError(f"{path}: is no file that `torch-trace merge` wrote.")
    ranks: list[dict[str, Any]] = merged["ranks"]
    return ranks
