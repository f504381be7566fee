# SPDX-License-Identifier: Apache-2.0
"""Tables of a window with several steps: sums are told for an iteration, the total beside one."""

from __future__ import annotations

from dataclasses import replace

from megatron.torch_trace.report.tables import Cell, Column, Row, Table
from megatron.torch_trace.wording import NONE, count, milliseconds, number, size

MS, COUNT, BYTES = "ms", "count", "bytes"
_TOTAL = "total ms"
_OF_TIMES = "; times of an iteration"
"""Of a table with shares of the window."""


def in_an_iteration(table: Table, steps: int) -> Table:
    """The table with its sums divided by the window's steps.

    Args:
        table: of a whole window.
        steps: of the window.

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
    rows = [_cells(row, table.columns, steps) for row in table.rows]
    if main is not None:
        columns.insert(main + 1, Column("window ms", brief=None, hint=f"in all {steps} steps"))
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


def _column(one: Column) -> Column:
    """Headings that name the window name the iteration then."""
    if not one.sums:
        return one
    brief = one.brief and one.brief.replace("window", "iteration")
    return replace(one, title=one.title.replace("window", "iteration"), brief=brief)


def _cells(row: Row, columns: tuple[Column, ...], steps: int) -> list[Cell]:
    return [
        _cell(cell, column.sums, steps) if column.sums else cell
        for cell, column in zip(row.cells, columns, strict=True)
    ]


def _cell(cell: Cell, sums: str, steps: int) -> Cell:
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
