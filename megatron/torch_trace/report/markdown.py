# SPDX-License-Identifier: Apache-2.0
"""The report as Markdown, for an issue or a wiki: the sections of the page as tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from megatron.torch_trace.allocator.ranks.stages import RankMemory
from megatron.torch_trace.analysis.findings.consequences import introduced
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.report import sentences
from megatron.torch_trace.report.contents import sections
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.tables import Medium, Table, in_json
from megatron.torch_trace.wording import visible

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")
_ROWS_OF_A_TREE = 40


def render_markdown(analysis: Analysis, *, memory: Sequence[RankMemory] = ()) -> str:
    """The answer, the findings, and the first rows of every table; nothing is drawn.

    Args:
        analysis: what to render.
        memory: of the ranks with an allocator snapshot beside their traces.
    """
    parts = ["# Where the time went", _escaped(sentences.head(analysis))]
    parts += [_escaped(sentence) for sentence in sentences.answer(analysis)]
    if analysis.findings:
        parts.append("## Findings")
        parts.append("\n".join(map(_finding, analysis.findings)))
    for section in sections(Subject(analysis, memory=memory), Medium.DOCUMENT):
        parts += _section(section)
    notes = sentences.notes(analysis)
    if notes:
        parts += ["## Notes", "\n".join(f"- {_escaped(note)}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def _finding(finding: Any) -> str:
    advice = visible(finding.advice)  # of ours, with flags as code
    said = f"`{finding.code}`: {_escaped(finding.title)} {advice}"
    if finding.cause is not None:
        return f"  - {introduced(finding)} {said}"
    return f"- **{finding.severity}** {said}"


def _section(section: Section) -> list[str]:
    tables = [_table(one) for one in section.shown(Medium.DOCUMENT)]
    rest = [_escaped(section.rest)] if section.rest else []
    return [f"## {section.title}", *tables, *rest] if tables else []


def _table(one: Table) -> str:
    # What a page draws as a bar alone has no words.
    kept = [n for n in range(len(one.columns)) if any(row.cells[n].text for row in one.rows)]
    lines = [
        f"**{_escaped(one.caption)}**",
        "",
        _row(_escaped(one.columns[n].title) for n in kept),
        _row("---:" if one.columns[n].number else "---" for n in kept),
    ]
    most = _ROWS_OF_A_TREE if one.is_tree else one.limit
    for row in one.rows[:most]:
        indent = "&nbsp;&nbsp;" * max(row.level - 1, 0)
        cells = [_escaped(row.cells[n].text) for n in kept]
        lines.append(_row((indent + cells[0], *cells[1:])))
    more = len(one.rows) - most
    if more > 0:
        lines += ["", in_json(more)]
    if one.note:
        lines += ["", _escaped(one.note)]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Names from traces are text: no link, no markup, no end of a cell."""
    return _SPECIAL.sub(r"\\\1", visible(text).replace("\n", " "))
