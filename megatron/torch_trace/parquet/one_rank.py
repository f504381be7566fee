# SPDX-License-Identifier: Apache-2.0
"""One rank's share of the tables: what a worker process reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from megatron.torch_trace.analysis.communication.collectives import attribute
from megatron.torch_trace.analysis.communication.common_timebase import RankTimes
from megatron.torch_trace.analysis.communication.rank_calls import RankCalls, rank_calls
from megatron.torch_trace.analysis.run.iterations_beside import with_iterations_beside
from megatron.torch_trace.analysis.run.rank import RankOutcome, analyse_timeline
from megatron.torch_trace.analysis.timeline.activity import Activity, activity_of
from megatron.torch_trace.analysis.timeline.timeline import Timeline, timeline_of
from megatron.torch_trace.columns.activity_blocks import tables_of
from megatron.torch_trace.columns.activity_tables import CODES, COLUMNS
from megatron.torch_trace.columns.arguments import SlimEventWithArgs
from megatron.torch_trace.columns.builder import ColumnBuilder
from megatron.torch_trace.columns.joined_columns import JoinedColumns
from megatron.torch_trace.columns.slice_columns import SliceBuilder
from megatron.torch_trace.columns.slice_table import JoinedSlices
from megatron.torch_trace.files.parquet import write_parquet
from megatron.torch_trace.files.sources import RankedTrace
from megatron.torch_trace.parquet.cpu_tables import launch_table, span_table
from megatron.torch_trace.parquet.rank_tables import event_table, kernel_table
from megatron.torch_trace.parquet.schemas import SCHEMAS
from megatron.torch_trace.reader import Damage, Metadata, Trace
from megatron.torch_trace.reader.workers import Workers

OF_A_RANK = ("events", "kernels", "launches", "spans")
"""Tables that are written rank after rank, never all ranks in memory."""
OF_THE_ANALYSIS = ("steps", "modules", "findings")
_OF_ALL_SLICES = ("events", "ranks", "collectives")
"""The common timeline begins with the first slice of all, whatever it is."""


@dataclass(frozen=True, slots=True)
class _Job:
    trace: RankedTrace
    folder: Path
    tables: frozenset[str]
    strict: bool
    workers: int

    def write(self, table: str, frame: pl.DataFrame) -> None:
        if table in self.tables:
            write_parquet(frame, self.folder / f"{table}.{self.trace.rank:08d}.part")


@dataclass(frozen=True, slots=True)
class Part:
    """What the tables over all ranks need of one.

    Args:
        rank, file, metadata: of the trace.
        times: what aligns it in time.
        damage: of the file.
        outcome: its analysis; None if no table is asked for that needs it, or nothing can be said.
    """

    rank: int
    file: str
    metadata: Metadata
    times: RankTimes
    damage: Damage
    outcome: RankOutcome | None = None


def parts_of(
    traces: Sequence[RankedTrace],
    folder: Path,
    tables: frozenset[str],
    *,
    strict: bool,
    processes: int,
) -> Iterable[Part]:
    """Read every rank and write its `<table>.<rank>.part` into a folder.

    Args:
        traces: of the ranks.
        folder: for the parts.
        tables: those wanted.
        strict: raise StrictError at the first fault.
        processes: to read with.
    """
    side_by_side = len(traces) > 1 and processes > 1
    jobs = [
        _Job(trace, folder, tables, strict, 1 if side_by_side else processes) for trace in traces
    ]
    if not side_by_side:
        return map(_read, jobs)
    return (part for _, part in Workers(min(processes, len(jobs)), _read).map(jobs))


def _read(job: _Job) -> Part:
    rank, path = job.trace.rank, job.trace.path
    activity, damage, first_ns = _activity(job)
    metadata, base_ns = activity.metadata, activity.base_ns
    timeline = timeline_of(activity, workers=job.workers)
    if timeline is None:
        for table in OF_A_RANK[1:]:
            job.write(table, pl.DataFrame(schema=dict(SCHEMAS[table])))
        return Part(rank, path.name, metadata, RankTimes(base_ns, first_ns, None), damage)
    calls = _write(job, timeline)
    return Part(
        rank,
        path.name,
        metadata,
        RankTimes(base_ns, first_ns, calls),
        damage,
        _outcome(job, timeline),
    )


def _activity(job: _Job) -> tuple[Activity, Damage, int | None]:
    """What was read, the damage, and the first time of all slices where a table needs it."""
    trace = Trace(job.trace.path, strict=job.strict)
    joined = JoinedColumns(COLUMNS, CODES)
    if not job.tables & {*_OF_ALL_SLICES}:
        look = ColumnBuilder(tables_of(trace))
        for block in trace.map(look, SlimEventWithArgs, workers=job.workers, small_results=True):
            joined.add(block)
        activity = activity_of(trace, joined)
        return activity, activity.damage, None
    slices = JoinedSlices()
    wider = SliceBuilder((), tables_of(trace))
    for found in trace.map(wider, SlimEventWithArgs, workers=job.workers, small_results=True):
        slices.add(found)
        joined.add(found)
    table = slices.finish(trace)
    if "events" in job.tables:
        job.write("events", event_table(job.trace.rank, table))
    damage, first = table.damage, table.slices["ts"].min()
    del table, slices
    return activity_of(trace, joined), damage, first if isinstance(first, int) else None


def _write(job: _Job, timeline: Timeline) -> RankCalls:
    rank = job.trace.rank
    attributed = attribute(timeline)
    if "kernels" in job.tables:
        job.write("kernels", kernel_table(rank, timeline, attributed))
    if "launches" in job.tables:
        job.write("launches", launch_table(rank, timeline))
    if "spans" in job.tables:
        job.write("spans", span_table(rank, timeline))
    return rank_calls(timeline, attributed)


def _outcome(job: _Job, timeline: Timeline) -> RankOutcome | None:
    if not job.tables & {*OF_THE_ANALYSIS} or timeline.window.length <= 0:
        return None
    return with_iterations_beside(analyse_timeline(timeline, job.trace.rank), job.trace.path)
