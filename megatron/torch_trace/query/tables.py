# SPDX-License-Identifier: Apache-2.0
"""The tables that a query names: made of traces, or lying in a folder that `export` wrote."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from megatron.torch_trace.allocator.ranks.analysed import analyze
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.parquet import write_parquet
from megatron.torch_trace.files.path_kinds import is_file, is_folder
from megatron.torch_trace.files.sources import skipped_lines
from megatron.torch_trace.parquet.analysis_tables import finding_table, module_table, step_table
from megatron.torch_trace.parquet.export import export
from megatron.torch_trace.parquet.schemas import SCHEMAS
from megatron.torch_trace.wording import listed, path_text

_OF_AN_ANALYSIS: Mapping[str, Callable[[Analysis], pl.DataFrame]] = {
    "steps": lambda analysis: step_table(analysis.ranks),
    "modules": lambda analysis: module_table(analysis.ranks),
    "findings": finding_table,
}


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables in a folder.

    Args:
        files: table -> its Parquet file.
        lost: what is missing in them, a sentence for each trace.
        notes: what else the user should know, a sentence each.
    """

    files: Mapping[str, Path]
    lost: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def frames(self) -> dict[str, pl.LazyFrame]:
        """Each table, of which a query reads the columns that it names."""
        return {name: pl.scan_parquet(file, glob=False) for name, file in self.files.items()}


def is_exported(path: Path) -> bool:
    """Whether this is a folder that `export` wrote."""
    return is_folder(path) and any(is_file(path / f"{table}.parquet") for table in SCHEMAS)


def exported(folder: Path, wanted: Collection[str]) -> Tables:
    """Those of the wanted tables that lie in a folder of `export`.

    Raises:
        UsageError: one of them does not.
    """
    files = {table: folder / f"{table}.parquet" for table in SCHEMAS if table in wanted}
    for table, file in files.items():
        if not is_file(file):
            there = [one for one in SCHEMAS if is_file(folder / f"{one}.parquet")]
            raise UsageError(
                f"{folder}: has no {table}.parquet, only {listed(there)}; export the traces again, "
                "or name the traces."
            )
    return Tables(files)


def made(
    path: Path,
    wanted: Collection[str],
    folder: Path,
    *,
    strict: bool = False,
    jobs: int | None = None,
) -> Tables:
    """The wanted tables, made of the traces at `path`.

    Gains are of the analysis alone, which takes what was kept of it; all the rest is of one reading
    of the traces.

    Args:
        path: a trace, or a folder of them.
        wanted: names of tables.
        folder: for the files.
        strict, jobs: see `export`.

    Raises:
        UsageError: see `export` and `analyze`.
    """
    names = [table for table in SCHEMAS if table in wanted]
    lost: dict[str, str] = {}
    notes: dict[str, None] = {}
    of_analysis: list[str] = []
    if "findings" in names or {*names} <= {*_OF_AN_ANALYSIS}:
        of_analysis = [table for table in names if table in _OF_AN_ANALYSIS]
    if of_analysis:
        analysis = analyze(path, strict=strict, jobs=jobs, gains=None)
        lost |= {one.file: one.damage for one in analysis.ranks if one.damage}
        skipped = [(Path(one.file), one.reason) for one in analysis.skipped_files]
        notes |= dict.fromkeys(skipped_lines(skipped))
        for table in of_analysis:
            write_parquet(_OF_AN_ANALYSIS[table](analysis), folder / f"{table}.parquet")
    rest = [table for table in names if table not in of_analysis]
    if rest:
        done = export(path, folder, force=True, strict=strict, jobs=jobs, tables=rest)
        lost |= {path_text(file): damage.sentence() for file, damage in done.damage.items()}
        notes |= dict.fromkeys(done.notes)
    return Tables(
        {table: folder / f"{table}.parquet" for table in names},
        tuple(f"{file}: {damage}" for file, damage in lost.items()),
        tuple(notes),
    )
