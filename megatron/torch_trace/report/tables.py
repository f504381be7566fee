# SPDX-License-Identifier: Apache-2.0
"""What tables of a report are made of: rows and cells that only await their renderer.

A table says once what it holds. Where a terminal has less room than a page, the table says what
to leave out there: columns without a `brief` title, `spare` rows, and rows beyond `most`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from enum import Flag, auto

from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.analysis.timeline.breakdown import Breakdown
from megatron.torch_trace.analysis.timeline.moment import Moment
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_NAMES, BREAKDOWN_PARTS
from megatron.torch_trace.wording import NONE, UNKNOWN, count, counted, milliseconds, percent


class Medium(Flag):
    """What a report is rendered for."""

    TERMINAL = auto()
    PAGE = auto()
    DOCUMENT = auto()
    WRITTEN = PAGE | DOCUMENT
    ALL = TERMINAL | WRITTEN


@dataclass(frozen=True, slots=True)
class At:
    """What a click shows in the timeline: ns in that rank's trace."""

    rank: int
    start: int
    duration: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell.

    Args:
        text: what is read.
        sort: what it is sorted by, where that is not the text.
        full: the whole of a text that is shortened.
        bar: parts of a bar beside a share, (colour, 0 to 1).
        brief: what is read on a terminal, where that is not the text.
        tone: `more` or `less` of a change for the worse or the better.
    """

    text: str
    sort: float | None = None
    full: str | None = None
    bar: tuple[tuple[str, float], ...] = ()
    brief: str | None = None
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Args:
        title: its heading; empty to leave the column out of pages and documents.
        number: its cells are on the right.
        hint: explains the heading.
        brief: the heading on a terminal; None to leave the column out there.
        cut: a terminal that is too narrow cuts its cells.
        sums: `ms`, `count` or `bytes` if its cells add up over the window, so that they can be
            told for an iteration.
        spare: a terminal of less than 96 columns leaves it out; so does a wider one that the table
            would not fit, unless its cells can be cut.
    """

    title: str
    number: bool = True
    hint: str = ""
    brief: str | None = ""
    cut: bool = False
    spare: bool = False
    sums: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Args:
        cells: one for each column.
        at: an example of what the row sums up.
        attributes: `data-` attributes by name.
        level: in a tree, from 1 on; the rows of a tree stand in its order.
        spare: a terminal leaves it out.
    """

    cells: tuple[Cell, ...]
    at: At | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    level: int = 0
    spare: bool = False

    def without(self, columns: Container[int]) -> Row:
        """The row without the cells of these columns."""
        return replace(self, cells=tuple(c for n, c in enumerate(self.cells) if n not in columns))


@dataclass(frozen=True, slots=True)
class Table:
    """A table that can be sorted, searched and copied.

    Args:
        name: its id.
        rest: what is not in it, a sentence for a page; more: how many rows, for a terminal.
        brief: its heading on a terminal, where the caption would not do.
        most: rows that a terminal shows; 0 for all.
        told: what a terminal says of the rows beyond; nothing where the heading says TOP.
        each: what a row is, one noun.
        limit: rows that a page shows before it is asked for all.
        note: what is to be known to read it, for pages and documents.
        said: the same for a terminal, lines that it wraps.
        media: what shows it.
        rank: whose all rows are, where no column says it.
    """

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    rest: str = ""
    more: int = 0
    brief: str = ""
    most: int = 0
    told: str = "{}: --json has them."
    each: str = "row"
    limit: int = 12
    note: str = ""
    said: str = ""
    media: Medium = Medium.ALL
    rank: int | None = None

    def without(self, columns: Container[int]) -> Table:
        """The table without these columns."""
        kept = tuple(column for n, column in enumerate(self.columns) if n not in columns)
        return replace(self, columns=kept, rows=tuple(row.without(columns) for row in self.rows))

    def without_empty(self, first: int) -> Table:
        """The table without those columns from `first` on in which there is nothing but zero."""
        empty = [
            n
            for n in range(first, len(self.columns))
            if not any(row.cells[n].sort or row.cells[n].text == UNKNOWN for row in self.rows)
        ]
        return self.without(empty) if empty else self

    @property
    def is_tree(self) -> bool:
        """Whether its rows can be folded."""
        return any(row.level for row in self.rows)

    @property
    def is_wide(self) -> bool:
        """Whether a bar or long words make use of all the room there is."""
        long = any(cell.bar and not cell.text for row in self.rows[:1] for cell in row.cells)
        return long or len(self.columns) > _MANY_COLUMNS


_MANY_COLUMNS = 9


def text(value: object, full: str | None = None, brief: str | None = None) -> Cell:
    """A word; `full` if it is a shortened one, `brief` if a terminal has another."""
    return Cell(str(value), full=None if full == value else full, brief=brief)


def ms(ns: float | None) -> Cell:
    """A time in ms."""
    return Cell(milliseconds(ns) if ns else NONE if ns is None else "0", sort=ns)


def in_json(more: int, each: str = "row") -> str:
    """Where the rows are that a page has no room for: `4 more rows are in analyze --json.`"""
    if more <= 0:
        return ""
    return f"{counted(more, f'more {each}')} {'is' if more == 1 else 'are'} in analyze --json."


def amount(value: float) -> Cell:
    """A count; `-` where there is none."""
    return Cell(count(value) if value else NONE, sort=value)


def some_ms(ns: float | None) -> Cell:
    """A time in ms of what need not be there: `-` instead of 0."""
    return Cell(milliseconds(ns) if ns else NONE, sort=ns)


def share(value: float | None, colour: str = "plain") -> Cell:
    """A share with its bar."""
    bar = () if value is None else ((colour, min(max(value, 0.0), 1.0)),)
    return Cell(percent(value), sort=value, bar=bar)


def number(value: float | None, shown: str) -> Cell:
    """Any other number, as it is to be shown."""
    return Cell(NONE if value is None else shown, sort=value)


def rank_cell(rank: RankResult) -> Cell:
    """Its number, or that nothing tells it."""
    return Cell(rank.number, sort=rank.rank)


def at(rank: int | None, moment: Moment | None) -> At | None:
    """An example on a rank."""
    if rank is None or moment is None:
        return None
    return At(rank, moment.start_ns, moment.duration_ns)


def stacked(parts: Breakdown | None, length: int) -> Cell:
    """The breakdown as one bar, with its numbers to be read aloud and on hover."""
    if parts is None or not length:
        return Cell(UNKNOWN)
    shares = [(name, getattr(parts, name) / length) for name in BREAKDOWN_PARTS]
    told = ", ".join(f"{BREAKDOWN_NAMES[name]} {percent(part)}" for name, part in shares)
    return Cell("", full=told, bar=tuple(shares))
