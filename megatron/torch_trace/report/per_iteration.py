# SPDX-License-Identifier: Apache-2.0
"""Tables of a window with several steps: sums are told for an iteration, the total beside one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.report.tables import Cell, Column, Row, Table
from megatron.torch_trace.wording import NONE, count, milliseconds, number, size

MS, COUNT, BYTES = "ms", "count", "bytes"
_TOTAL = "total ms"
_OF_TIMES = "; times of an iteration"
"""Of a table with shares of the window."""


def steps_by_rank(analysis: Analysis) -> dict[int, int]:
    """How many steps each rank's trace holds; those of all traces where it has none marked.

    The trace of a rank that was ended has fewer than those of the others.
    """
    every = max(1, len(analysis.summary.steps))
    return {rank.rank: len(rank.steps) or every for rank in analysis.ranks}


def in_an_iteration(table: Table, steps: Mapping[int, int]) -> Table:
    """The table with its sums divided by the steps that they are of.

    Args:
        table: of a whole window.
        steps: how many each rank has. A row is of the rank in its column `rank`, or of the table's
            own rank; else it is a mean over ranks, and so are its steps.

    Returns:
        The same table where no column adds up. Pages and documents have the window's total of the
        first time beside it.
    """
    summed = [n for n, column in enumerate(table.columns) if column.sums]
    if not summed:
        return table
    times = [n for n in summed if table.columns[n].sums == MS]
    main = next((n for n in times if table.columns[n].title == _TOTAL), next(iter(times), None))
    columns = [_column(one) for one in table.columns]
    rank_at = next((n for n, one in enumerate(table.columns) if one.title == "rank"), None)
    of_all = fmean(steps.values())
    rows = []
    for row in table.rows:
        rank = table.rank if rank_at is None else row.cells[rank_at].sort
        count = of_all if rank is None else steps.get(int(rank), of_all)
        rows.append(_cells(row, table.columns, count))
    if main is not None:
        columns.insert(main + 1, Column("window ms", brief=None, hint=_in_all(steps)))
        for row, cells in zip(table.rows, rows, strict=True):
            whole = row.cells[main]
            cells.insert(main + 1, Cell(whole.text.partition(" ")[0], sort=whole.sort))
    return replace(
        table,
        caption=f"{table.caption}{_OF_TIMES if 'window' in table.caption else ', in an iteration'}",
        brief=_heading(table.brief),
        columns=tuple(columns),
        rows=tuple(
            replace(row, cells=tuple(cells)) for row, cells in zip(table.rows, rows, strict=True)
        ),
    )


def _in_all(steps: Mapping[int, int]) -> str:
    different = sorted(set(steps.values()))
    return f"in all {different[0]} steps" if len(different) == 1 else "in all steps of the rank"


def _column(one: Column) -> Column:
    """Headings that name the window name the iteration then."""
    if not one.sums:
        return one
    brief = one.brief and one.brief.replace("window", "iteration")
    return replace(one, title=one.title.replace("window", "iteration"), brief=brief)


def _cells(row: Row, columns: tuple[Column, ...], steps: float) -> list[Cell]:
    return [
        _cell(cell, column.sums, steps) if column.sums else cell
        for cell, column in zip(row.cells, columns, strict=True)
    ]


def _cell(cell: Cell, sums: str, steps: float) -> Cell:
    """What stands behind the number, such as a rank in brackets, stays."""
    if not cell.sort or cell.text == NONE:
        return cell
    value = cell.sort / steps
    shown = _SHOWN[sums](value)
    rest = cell.text.partition(" ")[2] if sums != BYTES else ""
    brief = None if cell.brief is None else cell.brief.replace(cell.text, shown)
    return replace(cell, text=f"{shown} {rest}".rstrip(), sort=value, brief=brief)


def _count(value: float) -> str:
    return count(value) if value == int(value) else number(value)


_SHOWN = {MS: milliseconds, COUNT: _count, BYTES: size}


def _heading(brief: str) -> str:
    """`KERNELS (ms, mean of 4 ranks)` -> `KERNELS (ms an iteration, mean of 4 ranks)`."""
    return brief.replace("(ms", "(ms an iteration", 1)
