# SPDX-License-Identifier: Apache-2.0
"""Aligned columns in plain text that fit a given width."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from megatron.torch_trace.report.section import Section
from megatron.torch_trace.report.tables import Column, Medium, Row, Table
from megatron.torch_trace.wording import counted, cut_in_the_middle, visible

_GAP, _NARROW_GAP = "  ", " "
_INDENT = "  "
_LEAST = 8
_WIDE = 96

_MOST_OF_A_WORD = 300
_LONG_WORD = re.compile(rf"\S{{{_MOST_OF_A_WORD + 3},}}")
"""A name, which can be as long as its writer liked."""


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lines of a table: a heading and one line for each row.

    Args:
        columns: headings; one that begins with `<` is aligned left. If the table would be too wide
            columns that begin with `<~` are cut with `...` first, then gaps and the others on the
            left.
        rows: cells, one for each column.
        width: characters a line may have.
    """
    left = [name.startswith("<") for name in columns]
    cells = [
        [name.lstrip("<~") for name in columns],
        *[[visible(cell) for cell in row] for row in rows],
    ]
    widths = [max(len(row[n]) for row in cells) for n in range(len(columns))]
    gap = _GAP
    cut = [n for n, name in enumerate(columns) if name.startswith("<~")]
    over = _over(widths, gap, width)
    _narrow(widths, cut, over)
    if _over(widths, gap, width) > 0:
        gap = _NARROW_GAP
        _narrow(widths, [n for n, is_left in enumerate(left) if is_left], _over(widths, gap, width))
    lines = []
    for row in cells:
        parts = [
            _cut(cell, widths[n]).ljust(widths[n]) if left[n] else cell.rjust(widths[n])
            for n, cell in enumerate(row)
        ]
        lines.append((_INDENT + gap.join(parts)).rstrip())
    return lines


def render(one: Table, width: int) -> list[str]:
    """A table as lines: its heading, as many rows as it shows on a terminal, how many more."""
    rows = [row for row in one.rows if not row.spare]
    rows = rows[: one.most] if one.most else rows
    kept = [n for n, column in enumerate(one.columns) if column.brief is not None]
    if width < _WIDE or not _fits(one, rows, kept, width):
        wanted = [(n, one.columns[n]) for n in kept]
        kept = [n for n, of in wanted if not of.spare or (of.cut and width >= _WIDE)]
    lines = [one.brief or one.caption.upper()]
    lines += table(
        [_heading(one.columns[n]) for n in kept],
        [[_indented(row, n) for n in kept] for row in rows],
        width,
    )
    more = len(one.rows) - len(rows) + one.more
    if more and one.told:
        lines.append("  " + one.told.format(counted(more, f"more {one.each}")))
    return lines + _said(one.said, width)


def _fits(one: Table, rows: Sequence[Row], kept: Sequence[int], width: int) -> bool:
    """Whether no cell has to be cut."""
    headings = [_heading(one.columns[n]).lstrip("<~") for n in kept]
    cells = [headings, *([_indented(row, n) for n in kept] for row in rows)]
    return _over([max(map(len, column)) for column in zip(*cells, strict=True)], _GAP, width) <= 0


def render_section(section: Section, width: int) -> list[str]:
    """The tables of a section, if it has any, and what it says below them."""
    found = [render(one, width) for one in section.shown(Medium.TERMINAL)]
    lines = [line for n, part in enumerate(found) for line in ([""] if n else []) + part]
    return lines + _said(section.said, width)


def _said(text: str, width: int) -> list[str]:
    return [part for line in text.splitlines() for part in paragraph(line, width, "  ", "  ")]


def _indented(row: Row, n: int) -> str:
    cell = row.cells[n]
    shown = cell.text if cell.brief is None else cell.brief
    return ("" if n else "  " * (row.level - 1)) + shown


def _heading(column: Column) -> str:
    side = "" if column.number else "<~" if column.cut else "<"
    return side + (column.brief or column.title)


def _over(widths: Sequence[int], gap: str, width: int) -> int:
    return sum(widths) + len(gap) * (len(widths) - 1) + len(_INDENT) - width


def _narrow(widths: list[int], columns: Sequence[int], over: int) -> None:
    """Take `over` characters from these columns, one after the other, in place."""
    for n in columns:
        if over > 0:
            kept = min(widths[n], max(_LEAST, widths[n] - over))
            over -= widths[n] - kept
            widths[n] = kept


def _cut(cell: str, width: int) -> str:
    return cut_in_the_middle(cell, width, "...")


def paragraph(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """`text` in lines of at most `width`, the first after `first`, the others after `rest`."""
    return textwrap.wrap(
        _LONG_WORD.sub(lambda word: f"{word[0][:_MOST_OF_A_WORD]}...", visible(text)),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
