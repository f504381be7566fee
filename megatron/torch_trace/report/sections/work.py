# SPDX-License-Identifier: Apache-2.0
"""GPU work: by family, kernel, operator and shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from megatron.torch_trace.analysis.results.summary import WorkSummary
from megatron.torch_trace.analysis.timeline.kernel_names import distinct_names
from megatron.torch_trace.report.means import of_ranks, over_ranks
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.shapes import shape_in_words
from megatron.torch_trace.report.tables import (
    Cell,
    Column,
    Row,
    Table,
    amount,
    at,
    in_json,
    ms,
    number,
    share,
    text,
)
from megatron.torch_trace.wording import cut_in_the_middle, duration, microseconds

_LEAST, _MOST = 50, 400
_MOST_CHARACTERS = 150_000
_LONGEST = 72


def section(subject: Subject) -> Section:
    """Four tables; of each a terminal shows `top` rows, of the families at least eight."""
    analysis = subject.analysis
    top = subject.top
    summary = analysis.summary
    if not summary.kernels:
        return Section("work", "GPU work", "No GPU work was recorded.")
    over, of = over_ranks(analysis), of_ranks(analysis)
    tables = [
        _table(_Kind("families", "family", f"GPU work by family, {over}"), summary.families),
        _table(_Kind("kernels", "kernel", f"Kernels, {over}"), summary.kernels),
        _table(
            _Kind("operators", "operator", f"Operators, by the GPU work they launched, {over}"),
            summary.operators,
        ),
        _table(
            _Kind("shapes", "shape", f"Operators and their input shapes, {over}"), summary.shapes
        ),
    ]
    headings = (
        f"GPU WORK BY FAMILY ({of})",
        f"TOP KERNELS ({of})",
        f"TOP OPERATORS by the GPU work they launched ({of})",
        f"TOP SHAPES ({of})",
    )
    most = (max(top, 8), top, top, top)
    shown = [
        replace(table, brief=heading, most=rows, told="")
        for table, heading, rows in zip(tables, headings, most, strict=True)
        if table is not None
    ]
    return Section("work", "GPU work", tables=shown, data=_drawn(subject))


def _drawn(subject: Subject) -> dict[str, Any]:
    if not subject.draws:
        return {}
    from megatron.torch_trace.report.figures.peak_ladder import peak_ladder

    ladder = peak_ladder(subject.analysis)
    return {"ladder": ladder} if ladder else {}


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    first: str
    caption: str


def _table(kind: _Kind, rows: Sequence[WorkSummary]) -> Table | None:
    if not rows:
        return None
    first = kind.first
    titles = {"kernel": ("kernel", "family"), "shape": ("shape", "operator")}.get(first, (first,))
    may_be_cut = len(titles) > 1
    columns = (
        *(Column(title, number=False, cut=may_be_cut and not n) for n, title in enumerate(titles)),
        Column("calls" if first in ("kernel", "family") else "kernels", sums="count"),
        Column("ms", sums="ms"),
        Column("of window", brief="share"),
        Column("mean us", brief=None if first == "family" else ""),
        *((Column("longest us", brief=None),) if first != "family" else ()),
    )
    count_ = _fitting(rows)
    shown = rows[:count_]
    short = distinct_names([row.name for row in shown]) if first == "kernel" else [""] * count_
    lines = tuple(_row(row, first, name) for row, name in zip(shown, short, strict=True))
    left = rows[count_:]
    rest = ""
    if left:
        time = sum(row.time_ns for row in left)
        rest = f"{in_json(len(left), first)} Together they take {duration(time)}."
    return Table(kind.name, kind.caption, columns, lines, rest)


def _fitting(rows: Sequence[WorkSummary]) -> int:
    """How many rows: of kernels with names of thousands of characters fewer."""
    length = 0
    for number_, row in enumerate(rows[:_MOST]):
        length += len(row.name) + len(row.detail)
        if length > _MOST_CHARACTERS and number_ >= _LEAST:
            return number_
    return min(len(rows), _MOST)


def _row(row: WorkSummary, first: str, short: str) -> Row:
    names: tuple[Cell, ...]
    if first == "kernel":
        names = (text(_cut(short), row.name, short), text(row.detail))
    elif first == "shape":
        words = shape_in_words(row.detail)
        names = (text(_cut(words), row.detail, words), text(row.name))
    else:
        names = (text(_cut(row.name), row.name, row.name),)
    longest = None if row.longest is None else row.longest.duration_ns
    cells = (
        *names,
        amount(row.calls),
        ms(row.time_ns),
        share(row.share),
        _microseconds(row.mean_ns),
        *((_microseconds(longest),) if first != "family" else ()),
    )
    return Row(cells, at(row.longest_rank, row.longest))


def _microseconds(ns: float | None) -> Cell:
    return number(ns, microseconds(ns))


def _cut(name: str) -> str:
    return cut_in_the_middle(name, _LONGEST)
