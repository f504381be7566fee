# SPDX-License-Identifier: Apache-2.0
"""`export`: the tables of all ranks as `<table>.parquet`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from megatron.torch_trace.analysis.activity import read_activity
from megatron.torch_trace.analysis.choosing import one_window
from megatron.torch_trace.analysis.collectives import attribute
from megatron.torch_trace.analysis.intervals import ints
from megatron.torch_trace.analysis.matching import RankCalls, match, rank_calls
from megatron.torch_trace.analysis.stragglers import find_stragglers, waits_of
from megatron.torch_trace.analysis.timeline import place
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.events import read_table
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
from megatron.torch_trace.perfetto.timebase import RankTimes, Timebase, common_timebase
from megatron.torch_trace.reader import Damage, Metadata, available_cores
from megatron.torch_trace.reader.workers import Workers
from megatron.torch_trace.sources import RankedTrace, find_traces, ranked
from megatron.torch_trace.suffixes import TEMPORARY_SUFFIX

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
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", suffix=TEMPORARY_SUFFIX, dir=target) as temporary:
        work = Path(temporary)
        parts = []
        for part in _read(traces, work, strict, jobs or available_cores()):
            parts.append(part)
            if on_rank:
                on_rank(part.rank)
        timebase = common_timebase({part.rank: part.times for part in parts})
        frames = {
            "collectives": _collectives(parts, timebase),
            "steps": pl.concat([part.steps for part in parts]),
            "ranks": _ranks(parts, timebase),
        }
        for table, frame in frames.items():
            frame.write_parquet(work / f"{table}.whole")
        for table in _LARGE:
            pl.scan_parquet(sorted(work.glob(f"{table}.*.part"))).sink_parquet(
                work / f"{table}.whole"
            )
        for table in SCHEMAS:
            (work / f"{table}.whole").replace(target / f"{table}.parquet")
    rows = {
        table: pl.scan_parquet(target / f"{table}.parquet").select(pl.len()).collect().item()
        for table in SCHEMAS
    }
    damage = {
        trace.path: part.damage for trace, part in zip(traces, parts, strict=True) if part.damage
    }
    skipped = (f"Skipped {path}: {reason}." for path, reason in sources.skipped)
    return Export(target, rows, damage, (*skipped, *timebase.notes))


def _refuse(folder: Path, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: is a file; name a folder for the tables.")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UsageError(f"{folder}: is not empty; choose another folder or pass --force.")
    if not folder.absolute().parent.is_dir():
        raise UsageError(f"{folder.parent}: no such folder; create it or choose another --output.")


def _read(traces: list[RankedTrace], folder: Path, strict: bool, count: int) -> Iterable[_Part]:
    side_by_side = len(traces) > 1 and count > 1
    work = [_Job(trace, folder, strict, 1 if side_by_side else count) for trace in traces]
    if not side_by_side:
        return map(_export_rank, work)
    return (part for _, part in Workers(min(count, len(work)), _export_rank).map(work))


def _export_rank(job: _Job) -> _Part:
    rank, path = job.trace.rank, job.trace.path
    table = read_table(path, without=(), workers=job.workers, strict=job.strict)
    event_table(rank, table).write_parquet(job.part("events"))
    damage, first = table.damage, table.slices["ts"].min()
    del table
    activity = read_activity(path, workers=job.workers)
    metadata, base_ns = activity.metadata, activity.base_ns
    timeline = place(activity)
    calls: RankCalls | None = None
    kernels, steps = pl.DataFrame(schema=dict(KERNELS)), pl.DataFrame(schema=dict(STEPS))
    if timeline is not None:
        attributed = attribute(timeline)
        calls = rank_calls(timeline, attributed)
        kernels, steps = kernel_table(rank, timeline, attributed), step_table(rank, timeline)
    kernels.write_parquet(job.part("kernels"))
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
            "file": part.file,
            "world_size": part.metadata.world_size,
            **{name: part.metadata.coordinates.get(name) for name in _COORDINATES},
            "base_ns": part.times.base_ns,
            "offset_ns": timebase.offset_ns[part.rank],
            "clock_ns": timebase.clock_ns[part.rank],
        }
        for part in parts
    ]
    return pl.DataFrame(rows, schema=dict(RANKS))
