# SPDX-License-Identifier: Apache-2.0
"""The report as Markdown, for an issue or a wiki: the sections of the page as tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.report import sentences
from megatron.torch_trace.report.html.module_tree import Tree
from megatron.torch_trace.report.html.page import SECTIONS
from megatron.torch_trace.report.tables import Cell, Column, Section, Table
from megatron.torch_trace.wording import visible

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")


def render_markdown(analysis: Analysis) -> str:
    """The answer, the findings, and the first rows of every table; nothing is drawn."""
    parts = ["# Where the time went", _escaped(sentences.head(analysis))]
    parts += [_escaped(sentence) for sentence in sentences.answer(analysis)]
    if analysis.findings:
        parts.append("## Findings")
        parts.append("\n".join(map(_finding, analysis.findings)))
    for make in SECTIONS:
        section = make(analysis)
        tables = list(_tables(section))
        if tables:
            parts.append(f"## {section.title}")
            parts += tables
    notes = sentences.notes(analysis)
    if notes:
        parts += ["## Notes", "\n".join(f"- {_escaped(note)}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def _finding(finding: Any) -> str:
    advice = visible(finding.advice)  # of ours, with flags as code
    return f"- **{finding.severity}** `{finding.code}`: {_escaped(finding.title)} {advice}"


def _tables(section: Section) -> Iterator[str]:
    if section.missing is not None:
        return
    data = section.data
    for one in (*data.values(), *data.get("trees", ()), *data.get("tables", ())):
        if isinstance(one, Table) and one.rows:
            rows = [(row.level, row.cells) for row in one.rows]
            yield _table(one.caption, one.columns, rows, one.limit, one.note)
        elif isinstance(one, Tree) and one.lines:
            rows = [(line.level, line.cells) for line in one.lines]
            yield _table(one.label, one.columns, rows, _LINES_OF_A_TREE, one.outside)


_LINES_OF_A_TREE = 40


def _table(
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[tuple[int, Sequence[Cell]]],
    most: int,
    note: str,
) -> str:
    # What a page draws as a bar alone has no words.
    kept = [n for n in range(len(columns)) if any(cells[n].text for _, cells in rows)]
    lines = [
        f"**{_escaped(caption)}**",
        "",
        _row(_escaped(columns[n].title) for n in kept),
        _row("---:" if columns[n].number else "---" for n in kept),
    ]
    for level, cells in rows[:most]:
        indent = "&nbsp;&nbsp;" * max(level - 1, 0)
        lines.append(_row((indent if n == kept[0] else "") + _escaped(cells[n].text) for n in kept))
    more = len(rows) - most
    if more > 0:
        lines += ["", f"{more:,} rows more are in `torch-trace analyze --json`."]
    if note:
        lines += ["", _escaped(note)]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Names from traces are text: no link, no markup, no end of a cell."""
    return _SPECIAL.sub(r"\\\1", visible(text).replace("\n", " "))
