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

from megatron.torch_trace.allocator.ranks.analysed import memory_beside, with_memory_findings
from megatron.torch_trace.analysis.communication.common_timebase import Timebase, common_timebase
from megatron.torch_trace.analysis.communication.matching import match
from megatron.torch_trace.analysis.communication.stragglers import find_stragglers, waits_of
from megatron.torch_trace.analysis.run.recorded import Recorded
from megatron.torch_trace.analysis.run.together import together
from megatron.torch_trace.columns.intervals import ints
from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.files.atomic import working_folder
from megatron.torch_trace.files.parquet import write_parquet
from megatron.torch_trace.files.selection import one_window
from megatron.torch_trace.files.sources import (
    RankedTrace,
    find_traces,
    rank_of,
    ranked,
    read_metadata,
    skipped_lines,
)
from megatron.torch_trace.files.unchanged import Unchanged
from megatron.torch_trace.parquet.analysis_tables import finding_table, module_table, step_table
from megatron.torch_trace.parquet.one_rank import OF_A_RANK, Part, parts_of
from megatron.torch_trace.parquet.rank_tables import collective_table
from megatron.torch_trace.parquet.schemas import COLLECTIVES, FINDINGS, RANKS, SCHEMAS, shaped
from megatron.torch_trace.reader import Damage, available_cores
from megatron.torch_trace.reader.workers import are_small
from megatron.torch_trace.wording import nearest, path_text

_COORDINATES = ("tp", "pp", "dp", "cp", "ep")


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


def export(
    paths: Path | str | Iterable[Path | str],
    folder: Path | str,
    *,
    force: bool = False,
    strict: bool = False,
    jobs: int | None = None,
    tables: Iterable[str] = SCHEMAS,
    on_rank: Callable[[int], None] | None = None,
) -> Export:
    """Write the tables of one window's traces as `<table>.parquet`.

    Args:
        paths: traces, or folders of them.
        folder: is made; must be empty or not be there.
        force: replace tables in a folder that is not empty; other files stay.
        strict: raise StrictError at the first fault of a trace.
        jobs: processes; None for the cores that this job may use, at most 4.
        tables: names of those to write.
        on_rank: called with each rank that has been read.

    Raises:
        UsageError: see above; there is no such table; traces are of several windows; a rank is
            unknown, or held by two.
    """
    target = Path(folder)
    wanted = _known(tables)
    _refuse(target, force)
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    sources = find_traces(given)
    traces = _ranked(one_window(sources.traces))
    count = jobs or (1 if are_small(trace.path for trace in traces) else available_cores())
    with _new_tables(target, wanted) as work, Unchanged(trace.path for trace in traces):
        parts = []
        for part in parts_of(traces, work, wanted, strict=strict, processes=count):
            parts.append(part)
            if on_rank:
                on_rank(part.rank)
        timebase = common_timebase({part.rank: part.times for part in parts})
        rows = _write(work, parts, timebase, wanted)
    damage = {
        trace.path: part.damage for trace, part in zip(traces, parts, strict=True) if part.damage
    }
    skipped = skipped_lines(sources.skipped)
    return Export(target, rows, damage, (*skipped, *timebase.notes))


@contextmanager
def _new_tables(target: Path, tables: frozenset[str]) -> Iterator[Path]:
    """A folder to write tables in, which are in `target` afterwards: all of them, or none.

    A target that is not there appears at once and whole; one that is keeps its other files.
    """
    is_there = target.exists()
    try:
        with working_folder(target / "tables" if is_there else target.absolute()) as work:
            yield work
            if is_there:
                for table in tables:
                    (work / f"{table}.parquet").replace(target / f"{table}.parquet")
            else:
                work.rename(target)
    except OSError as error:
        raise TorchTraceError(f"{target}: {_why(error)}.") from error


def _write(
    work: Path, parts: Sequence[Part], timebase: Timebase, tables: frozenset[str]
) -> dict[str, int]:
    """The tables over all ranks; returns the rows of each table."""
    rows = {}
    for table in (name for name in SCHEMAS if name in tables):
        file = work / f"{table}.parquet"
        if table in OF_A_RANK:
            pieces = sorted(work.glob(f"{table}.*.part"))
            write_parquet(pl.scan_parquet(pieces, glob=False), file)
            for piece in pieces:
                piece.unlink()
        else:
            write_parquet(_over_ranks(table, parts, timebase), file)
        rows[table] = pl.scan_parquet(file, glob=False).select(pl.len()).collect().item()
    return rows


def _over_ranks(table: str, parts: Sequence[Part], timebase: Timebase) -> pl.DataFrame:
    if table == "collectives":
        return _collectives(parts, timebase)
    if table == "ranks":
        return _ranks(parts, timebase)
    by_rank = {part.rank: part.outcome for part in parts if part.outcome is not None}
    results = [outcome.result for outcome in by_rank.values()]
    if table == "steps":
        return step_table(results)
    if table == "modules":
        return module_table(results)
    if not results:
        return pl.DataFrame(schema=dict(FINDINGS))
    analysis = together(Recorded(by_rank, [], complete=True))
    return finding_table(with_memory_findings(analysis, memory_beside(analysis)))


def _ranked(paths: list[Path]) -> list[RankedTrace]:
    """Each with its rank; the only trace that tells none is rank 0, as in an analysis."""
    if len(paths) == 1 and rank_of(read_metadata(paths[0]), paths[0]) is None:
        return ranked(paths, [0])
    return ranked(paths)


def _known(tables: Iterable[str]) -> frozenset[str]:
    wanted = frozenset(tables)
    for name in sorted(wanted - {*SCHEMAS}):
        raise UsageError(f"--table {name}: no such table; {nearest(name, SCHEMAS)}")
    return wanted


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


def _collectives(parts: Sequence[Part], timebase: Timebase) -> pl.DataFrame:
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


def _ranks(parts: Sequence[Part], timebase: Timebase) -> pl.DataFrame:
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
