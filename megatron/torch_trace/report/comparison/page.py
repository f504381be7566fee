# SPDX-License-Identifier: Apache-2.0
"""`torch-trace compare -o compare.html`: one self-contained page, with the report's own script."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib import resources

from markupsafe import Markup

from megatron.torch_trace.analysis.compare.comparison import Comparison
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_NAMES, BREAKDOWN_PARTS
from megatron.torch_trace.report.comparison.answer import answer
from megatron.torch_trace.report.comparison.loop_changes import loop_changes
from megatron.torch_trace.report.comparison.module_changes import module_changes
from megatron.torch_trace.report.comparison.sections import (
    configuration,
    configuration_sentence,
    sections,
)
from megatron.torch_trace.report.comparison.words import part_name
from megatron.torch_trace.report.html.environment import asset, environment
from megatron.torch_trace.report.html.policy import policy
from megatron.torch_trace.report.html.prose import prose
from megatron.torch_trace.report.sentences import first_lines
from megatron.torch_trace.report.tables import Cell, Row, Table
from megatron.torch_trace.wording import duration

_PACKAGE = "megatron.torch_trace.report"
_ROWS, _RANKS = 100, 1024
_NUMBER = re.compile(r"[+-]?[\d,]*\d(?:\.\d+)?")
_WHOLE = "where-the-time-went"
_LEAST_ROWS = 16


@dataclass(frozen=True, slots=True)
class Bar:
    """One side's iteration: (part, % of the longer side's iteration), and what it says."""

    side: str
    parts: tuple[tuple[str, float], ...]
    told: str


def render_comparison_page(
    comparison: Comparison, a: Analysis, b: Analysis, names: tuple[str, str]
) -> str:
    """The comparison as a page; names of kernels are shown as text, whatever they hold.

    Args:
        comparison: what to render.
        a, b: the analyses, for the two lines that say what they are.
        names: what the user called them.
    """
    own = resources.files(_PACKAGE).joinpath("templates", "compare.css").read_text("utf-8")
    with_prose = environment((_PACKAGE, "templates"))
    with_prose.filters["prose"] = prose
    page = with_prose.get_template("compare.html")
    script = "".join(map(asset, ("report.js", "search.js", "markdown.js", "state.js", "tips.js")))
    tables = [
        configuration(comparison, top=_ROWS),
        *sections(comparison, top=_ROWS, ranks=_RANKS),
    ]
    return page.render(
        names=names,
        heads=(first_lines(a), first_lines(b)),
        answer=answer(comparison),
        bars=_bars(comparison),
        part_names=BREAKDOWN_NAMES,
        said=configuration_sentence(comparison),
        modules=module_changes(comparison.module_tree),
        unknown_modules=comparison.unknown_modules,
        loop=loop_changes(comparison.loop_tree),
        unknown_loop=comparison.unknown_loop,
        appeared=comparison.appeared,
        vanished=comparison.vanished,
        sections=[("", [_for_page(one) for one in tables if one.rows])],
        style=Markup(asset("colours.css") + asset("figures.css") + asset("report.css") + own),
        script=Markup(script),
        policy=policy([script], served=False),
    )


def _for_page(table: Table) -> Table:
    """With what is sure first and the rest on demand, and colours for the better and the worse."""
    titles = [column.title for column in table.columns]
    unnamed = "change" if "rank" in titles else "in %"
    columns = tuple(replace(one, title=one.title or unnamed) for one in table.columns)
    sure = titles.index("sure") if "sure" in titles else None
    rows = [_toned(_sortable(row), sure) for row in table.rows]
    limit = len(rows) if sure is None else 0
    if sure is not None and table.name != _WHOLE:
        rows.sort(key=lambda row: row.cells[sure].text != "yes")
        limit = sum(row.cells[sure].text == "yes" for row in rows)
    caption = f"{table.caption} ({table.note})" if table.note else table.caption
    return replace(
        table,
        caption=caption,
        note="",
        columns=columns,
        rows=tuple(rows),
        limit=max(limit, _LEAST_ROWS),
    )


def _sortable(row: Row) -> Row:
    """With the numbers that its cells begin with, so that the page can sort by them."""
    return replace(
        row, cells=tuple(replace(cell, sort=_leading_number(cell.text)) for cell in row.cells)
    )


def _leading_number(text: str) -> float | None:
    found = _NUMBER.match(text)
    return float(found[0].replace(",", "")) if found else None


def _toned(row: Row, sure: int | None) -> Row:
    if sure is not None and row.cells[sure].text == "no":
        return row
    is_better = row.cells[0].text == "overlapped communication"
    return replace(row, cells=tuple(_with_tone(cell, better=is_better) for cell in row.cells))


def _with_tone(cell: Cell, *, better: bool) -> Cell:
    """Less time is better, and so is more of it if it is overlapped."""
    if ".." in cell.text or cell.text[:1] not in ("+", "-") or not cell.text[1:2].isdigit():
        return cell
    return replace(cell, tone="less" if (cell.text[0] == "-") != better else "more")


def _bars(comparison: Comparison) -> list[Bar]:
    """A's iteration above B's, to one scale; none if a side's utilisation is unknown."""
    longest = max(comparison.iteration.before or 0.0, comparison.iteration.after or 0.0)
    bars = []
    for side, which in (("A", "before"), ("B", "after")):
        parts = {part: getattr(comparison.breakdown[part], which) for part in BREAKDOWN_PARTS}
        if not longest or None in parts.values():
            return []
        told = ", ".join(f"{part_name(part)} {duration(ns)}" for part, ns in parts.items())
        shares = tuple((part, round(100 * ns / longest, 3)) for part, ns in parts.items())
        bars.append(Bar(side, shares, told))
    return bars
