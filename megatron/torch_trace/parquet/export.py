# SPDX-License-Identifier: Apache-2.0
"""`export`: the tables of all ranks as `<table>.parquet`."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from megatron.torch_trace.analysis.communication.collectives import attribute
from megatron.torch_trace.analysis.communication.common_timebase import (
    RankTimes,
    Timebase,
    common_timebase,
)
from megatron.torch_trace.analysis.communication.matching import RankCalls, match, rank_calls
from megatron.torch_trace.analysis.communication.stragglers import find_stragglers, waits_of
from megatron.torch_trace.analysis.timeline.activity import activity_of, tables_of
from megatron.torch_trace.analysis.timeline.timeline import timeline_of
from megatron.torch_trace.columns.activity_tables import CODES, COLUMNS
from megatron.torch_trace.columns.arguments import SlimEventWithArgs
from megatron.torch_trace.columns.intervals import ints
from megatron.torch_trace.columns.joined_columns import JoinedColumns
from megatron.torch_trace.columns.slice_columns import SliceBuilder
from megatron.torch_trace.columns.slice_table import JoinedSlices
from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.files.atomic import working_folder
from megatron.torch_trace.files.parquet import write_parquet
from megatron.torch_trace.files.selection import one_window
from megatron.torch_trace.files.sources import RankedTrace, find_traces, ranked, skipped_lines
from megatron.torch_trace.files.unchanged import Unchanged
from megatron.torch_trace.parquet.rank_tables import (
    COLLECTIVES,
    KERNELS,
    RANKS,
    SCHEMAS,
    STEPS,
    collective_table,
    event_table,
    kernel_table,
    shaped,
    step_table,
)
from megatron.torch_trace.reader import Damage, Metadata, Trace, available_cores
from megatron.torch_trace.reader.workers import Workers, are_small
from megatron.torch_trace.wording import path_text

_COORDINATES = ("tp", "pp", "dp", "cp", "ep")
_LARGE = ("events", "kernels")
"""Tables that are written rank after rank, never all ranks in memory."""


@dataclass(frozen=True, slots=True)
class Export:
    """What `export` did.

    Args:
        folder: where the tables are.
        rows: table -> rows.
        damage: of each rank's file, only where there was any.
        notes: what the user should know, a sentence each.
    """

    folder: Path
    rows: Mapping[str, int]
    damage: Mapping[Path, Damage]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Job:
    trace: RankedTrace
    folder: Path
    strict: bool
    workers: int

    def part(self, table: str) -> Path:
        return self.folder / f"{table}.{self.trace.rank:08d}.part"


@dataclass(frozen=True, slots=True)
class _Part:
    """What the tables over all ranks need of one."""

    rank: int
    file: str
    metadata: Metadata
    times: RankTimes
    steps: pl.DataFrame
    damage: Damage


def export(
    paths: Path | str | Iterable[Path | str],
    folder: Path | str,
    *,
    force: bool = False,
    strict: bool = False,
    jobs: int | None = None,
    on_rank: Callable[[int], None] | None = None,
) -> Export:
    """Write the tables of one window's traces as `<table>.parquet`.

    Args:
        paths: traces, or folders of them.
        folder: is made; must be empty or not be there.
        force: replace tables in a folder that is not empty; other files stay.
        strict: raise StrictError at the first fault of a trace.
        jobs: processes; None for the cores that this job may use, at most 4.
        on_rank: called with each rank that has been read.

    Raises:
        UsageError: see above; traces are of several windows; a rank is unknown, or held by two.
    """
    target = Path(folder)
    _refuse(target, force)
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    sources = find_traces(given)
    traces = ranked(one_window(sources.traces))
    count = jobs or (1 if are_small(trace.path for trace in traces) else available_cores())
    with _new_tables(target) as work, Unchanged(trace.path for trace in traces):
        parts = []
        for part in _read(traces, work, strict, count):
            parts.append(part)
            if on_rank:
                on_rank(part.rank)
        timebase = common_timebase({part.rank: part.times for part in parts})
        rows = _write(work, parts, timebase)
    damage = {
        trace.path: part.damage for trace, part in zip(traces, parts, strict=True) if part.damage
    }
    skipped = skipped_lines(sources.skipped)
    return Export(target, rows, damage, (*skipped, *timebase.notes))


@contextmanager
def _new_tables(target: Path) -> Iterator[Path]:
    """A folder to write tables in, which are in `target` afterwards: all of them, or none.

    A target that is not there appears at once and whole; one that is keeps its other files.
    """
    is_there = target.exists()
    try:
        with working_folder(target / "tables" if is_there else target.absolute()) as work:
            yield work
            if is_there:
                for table in SCHEMAS:
                    (work / f"{table}.parquet").replace(target / f"{table}.parquet")
            else:
                work.rename(target)
    except OSError as error:
        raise TorchTraceError(f"{target}: {_why(error)}.") from error


def _write(work: Path, parts: Sequence[_Part], timebase: Timebase) -> dict[str, int]:
    """The tables over all ranks; returns the rows of each table."""
    frames = {
        "collectives": _collectives(parts, timebase),
        "steps": pl.concat([part.steps for part in parts]),
        "ranks": _ranks(parts, timebase),
    }
    for table, frame in frames.items():
        write_parquet(frame, work / f"{table}.parquet")
    for table in _LARGE:
        pieces = sorted(work.glob(f"{table}.*.part"))
        write_parquet(pl.scan_parquet(pieces, glob=False), work / f"{table}.parquet")
        for piece in pieces:
            piece.unlink()
    return {
        table: pl.scan_parquet(work / f"{table}.parquet", glob=False)
        .select(pl.len())
        .collect()
        .item()
        for table in SCHEMAS
    }


def _why(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; nothing was left behind"
    return f"cannot be written ({error.strerror or error})"


def _refuse(folder: Path, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: is a file; name a folder for the tables.")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UsageError(f"{folder}: is not empty; choose another folder or pass --force.")
    if not folder.absolute().parent.is_dir():
        raise UsageError(f"{folder.parent}: no such folder; create it, or write to another folder.")


def _read(traces: list[RankedTrace], folder: Path, strict: bool, count: int) -> Iterable[_Part]:
    side_by_side = len(traces) > 1 and count > 1
    work = [_Job(trace, folder, strict, 1 if side_by_side else count) for trace in traces]
    if not side_by_side:
        return map(_export_rank, work)
    return (part for _, part in Workers(min(count, len(work)), _export_rank).map(work))


def _export_rank(job: _Job) -> _Part:
    rank, path = job.trace.rank, job.trace.path
    trace = Trace(path, strict=job.strict)
    slices, joined = JoinedSlices(), JoinedColumns(COLUMNS, CODES)
    look = SliceBuilder((), tables_of(trace))
    for block in trace.map(look, SlimEventWithArgs, workers=job.workers, small_results=True):
        slices.add(block)
        joined.add(block)
    table = slices.finish(trace)
    write_parquet(event_table(rank, table), job.part("events"))
    damage, first = table.damage, table.slices["ts"].min()
    del table, slices
    activity = activity_of(trace, joined)
    metadata, base_ns = activity.metadata, activity.base_ns
    timeline = timeline_of(activity, workers=job.workers)
    calls: RankCalls | None = None
    kernels, steps = pl.DataFrame(schema=dict(KERNELS)), pl.DataFrame(schema=dict(STEPS))
    if timeline is not None:
        attributed = attribute(timeline)
        calls = rank_calls(timeline, attributed)
        kernels, steps = kernel_table(rank, timeline, attributed), step_table(rank, timeline)
    write_parquet(kernels, job.part("kernels"))
    first_ns = first if isinstance(first, int) else None
    return _Part(rank, path.name, metadata, RankTimes(base_ns, first_ns, calls), steps, damage)


def _collectives(parts: Sequence[_Part], timebase: Timebase) -> pl.DataFrame:
    """With the number of each call, the same on every rank, and what it waited."""
    calls = {part.rank: part.times.calls for part in parts if part.times.calls is not None}
    bases = {part.rank: part.times.base_ns for part in parts}
    if not calls:
        return pl.DataFrame(schema=dict(COLLECTIVES))
    matched = match(calls)
    waits = find_stragglers(matched)
    frames = []
    for position, rank in enumerate(matched.ranks):
        own = calls[rank]
        of = waits_of(matched, waits, position, ints(own.end - own.start))
        number = pl.Series([None] * len(own.start), dtype=pl.Int64)
        rows = matched.rows_of[position]
        number = number.scatter(
            matched.row[rows].astype("int64"), matched.call[rows].astype("int64")
        )
        frame = collective_table(rank, own, bases[rank]).with_columns(
            pl.Series("call", number),
            pl.Series("wait_ns", of.wait).set(pl.Series(~of.matched), None),
            (pl.col("start_ns") + timebase.offset_ns[rank]).alias("timeline_ns"),
        )
        frames.append(shaped(frame.to_dict(), COLLECTIVES))
    return pl.concat(frames)


def _ranks(parts: Sequence[_Part], timebase: Timebase) -> pl.DataFrame:
    rows: list[dict[str, Any]] = [
        {
            "rank": part.rank,
            "file": path_text(part.file),
            "world_size": part.metadata.world_size,
            **{name: part.metadata.coordinates.get(name) for name in _COORDINATES},
            "base_ns": part.times.base_ns,
            "offset_ns": timebase.offset_ns[part.rank],
            "clock_ns": timebase.clock_ns[part.rank],
        }
        for part in parts
    ]
    return pl.DataFrame(rows, schema=dict(RANKS))
