# SPDX-License-Identifier: Apache-2.0
"""`sql`: the answer to a query over the tables of traces."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.path_kinds import absence, is_file, is_folder
from megatron.torch_trace.parquet.schemas import SCHEMAS
from megatron.torch_trace.query import child, words
from megatron.torch_trace.query.execution import execute
from megatron.torch_trace.query.tables import Tables, exported, is_exported, made
from megatron.torch_trace.system import leftovers

_ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Answer:
    """The first rows of an answer.

    Args:
        frame: the rows that are shown, with all columns.
        left_out: how many more rows there are.
        lost: what damaged traces lack, a sentence for each.
        notes: what else to know, a sentence each.
    """

    frame: pl.DataFrame
    left_out: int = 0
    lost: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def sql(path: Path | str, query: str, *, jobs: int | None = None) -> pl.DataFrame:
    """The answer to a query over the tables of traces.

    Args:
        path: a trace, a folder with the traces of one window, or a folder that `torch-trace export`
            wrote.
        query: SELECT or WITH, in the SQL of polars; docs/sql.md names tables, columns and units.
        jobs: processes to read traces with; see `analyze`.

    Returns:
        All rows of the answer. Times are integer ns, sizes are bytes, shares are of 1.

    Raises:
        UsageError: the query is wrong, or would do more than read; a path does not exist; or see
            `analyze`.

    Example:
        frame = torch_trace.sql("torch_profile/20261127-221810/iter-0000003",
                                "select rank, sum(wait_ns) from collectives group by rank")
    """
    return answer(path, query, rows=None, jobs=jobs).frame


def answer(
    path: Path | str,
    query: str,
    *,
    rows: int | None,
    strict: bool = False,
    jobs: int | None = None,
) -> Answer:
    """The same, of which only some rows are read into memory.

    Args:
        path, query, jobs: see `sql`.
        rows: how many; None for all.
        strict: raise StrictError where a trace is damaged.
    """
    asked = words.read(query)
    source = Path(path)
    if not is_file(source) and not is_folder(source):
        raise UsageError(f"{source}: {absence(source)}.")
    wanted = [table for table in SCHEMAS if table in asked.tables]
    with own_folder() as folder:
        if is_exported(source):
            tables = exported(source, wanted)
        else:
            # A mistake is told before minutes of reading.
            execute(
                {table: pl.LazyFrame(schema=dict(SCHEMAS[table])) for table in wanted}, asked.text
            )
            tables = made(source, wanted, folder, strict=strict, jobs=jobs)
        return ask(tables, asked, folder, rows)


def ask(
    tables: Tables,
    asked: words.Query,
    folder: Path,
    rows: int | None,
    *,
    seconds: float | None = None,
    disk: int = 0,
) -> Answer:
    """Ask tables that are there.

    Args:
        tables: those that the query names.
        asked: the query.
        folder: of this process alone, for the whole answer.
        rows: see `answer`.
        seconds, disk: see `child.run`.

    Raises:
        UsageError: the query is wrong.
        TorchTraceError: it takes too long or too much.
    """
    file = folder / f"{_ANSWER}.parquet"
    child.run(tables.files, asked.text, file, seconds=seconds, disk=disk)
    whole = pl.scan_parquet(file, glob=False)
    count = whole.select(pl.len()).collect().item()
    frame = (whole if rows is None else whole.head(rows)).collect()
    return Answer(frame, count - len(frame), tables.lost, tables.notes)


@contextmanager
def own_folder() -> Iterator[Path]:
    """For tables and answers, removed again; nobody else may read what is in traces."""
    name = f"torch-trace-sql.{os.getpid()}.{secrets.token_hex(8)}"
    with leftovers.temporary(Path(tempfile.gettempdir()) / name) as folder:
        folder.mkdir(mode=0o700)
        yield folder
