# SPDX-License-Identifier: Apache-2.0
"""GPU work: by family, kernel, operator and shape."""

from __future__ import annotations

from collections.abc import Sequence

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.results.summary import WorkSummary
from megatron.torch_trace.analysis.timeline.kernel_names import distinct_names
from megatron.torch_trace.report.html.communication import means
from megatron.torch_trace.report.tables import (
    Cell,
    Column,
    Row,
    Section,
    Table,
    at,
    ms,
    number,
    share,
    text,
)
from megatron.torch_trace.report.work import shape_in_words
from megatron.torch_trace.wording import count, duration

_LEAST, _MOST = 50, 400
_MOST_CHARACTERS = 150_000
_LONGEST = 72


def section(analysis: Analysis) -> Section:
    """Four tables."""
    summary = analysis.summary
    if not summary.kernels:
        return Section("work", "Kernels", "no GPU work was recorded")
    what = means(analysis)
    data = {
        "families": _table("families", f"GPU work by family, {what}", summary.families, "family"),
        "kernels": _table("kernels", f"Kernels, {what}", summary.kernels, "kernel"),
        "operators": _table(
            "operators",
            f"Operators, by the GPU work they launched, {what}",
            summary.operators,
            "operator",
        ),
        "shapes": _table(
            "shapes", f"Operators and their input shapes, {what}", summary.shapes, "shape"
        ),
    }
    return Section("work", "Kernels", data=data)


def _table(name: str, caption: str, rows: Sequence[WorkSummary], first: str) -> Table | None:
    if not rows:
        return None
    titles = {"kernel": ("kernel", "family"), "shape": ("shape", "operator")}.get(first, (first,))
    columns = (
        *(Column(title, number=False) for title in titles),
        Column("calls" if first in ("kernel", "family") else "kernels"),
        Column("ms"),
        Column("of window"),
        Column("mean us"),
        *((Column("longest us"),) if first != "family" else ()),
    )
    count_ = _fitting(rows)
    shown = rows[:count_]
    short = distinct_names([row.name for row in shown]) if first == "kernel" else [""] * count_
    lines = tuple(_row(row, first, name) for row, name in zip(shown, short, strict=True))
    left = rows[count_:]
    rest = ""
    if left:
        time = sum(row.time_ns for row in left)
        rest = f"{len(left):,} more with {duration(time)} together are in analyze --json."
    return Table(name, caption, columns, lines, rest)


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
        names = (text(_cut(short), row.name), text(row.detail))
    elif first == "shape":
        names = (text(_cut(shape_in_words(row.detail)), row.detail), text(row.name))
    else:
        names = (text(_cut(row.name), row.name),)
    longest = None if row.longest is None else row.longest.duration_ns
    cells = (
        *names,
        number(row.calls, count(row.calls)),
        ms(row.time_ns),
        share(row.share),
        _microseconds(row.mean_ns),
        *((_microseconds(longest),) if first != "family" else ()),
    )
    return Row(cells, at(row.longest_rank, row.longest))


def _microseconds(ns: float | None) -> Cell:
    return number(ns, f"{(ns or 0) / 1e3:,.1f}")


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
