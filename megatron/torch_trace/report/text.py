# SPDX-License-Identifier: Apache-2.0
"""The report on a terminal: the answer first, then what to do, then the tables."""

from __future__ import annotations

from collections import Counter

from megatron.torch_trace.analysis.findings.consequences import introduced
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.report import sentences
from megatron.torch_trace.report.contents import sections
from megatron.torch_trace.report.section import Subject
from megatron.torch_trace.report.table import paragraph, render_section
from megatron.torch_trace.report.tables import Medium

LEAST_WIDTH, MOST_WIDTH = 80, 100

_MOST_OF_A_CODE = 4
_MARKS = {"high": "!!!", "medium": "!! ", "low": "!  ", "info": "i  "}


def render(analysis: Analysis, *, width: int = MOST_WIDTH, top: int = 5) -> str:
    """The report as plain text.

    Args:
        analysis: what to render.
        width: columns of the terminal; lines are 80 to 100 wide, whatever it is.
        top: rows in the tables of kernels, operators, shapes; of phases and modules twice as many.
    """
    width = max(LEAST_WIDTH, min(width, MOST_WIDTH))
    parts = [
        _first_lines(analysis, width),
        _answer(analysis, width),
        _findings(analysis.findings, width),
        *(
            render_section(one, width)
            for one in sections(Subject(analysis, top=top, draws=False), Medium.TERMINAL)
        ),
        _notes(analysis, width),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _first_lines(analysis: Analysis, width: int) -> list[str]:
    lines = [
        *sentences.possible_gains(analysis),
        sentences.head(analysis),
        *sentences.undisturbed(analysis),
    ]
    return [part for line in lines for part in paragraph(line, width, "", "  ")]


def _answer(analysis: Analysis, width: int) -> list[str]:
    lines = sentences.answer(analysis)
    return [part for line in lines for part in paragraph(line, width, "", "  ")]


def _findings(findings: tuple[Finding, ...], width: int) -> list[str]:
    if not findings:
        return ["FINDINGS", "  None."]
    lines = ["FINDINGS"]
    same = Counter(finding.code for finding in findings)
    said: Counter[str] = Counter()
    named = set()
    for finding in findings:
        said[finding.code] += 1
        more = same[finding.code] - _MOST_OF_A_CODE
        if said[finding.code] > _MOST_OF_A_CODE:
            if said[finding.code] == _MOST_OF_A_CODE + 1:
                lines.append(f"      ... and {more:,} more findings `{finding.code}`: --json.")
            continue
        mark = _MARKS[finding.severity]
        title = f"finding {finding.code}: {finding.title}{sentences.gain(finding)}"
        named.add(finding.name)
        if finding.cause in named:
            below = f"{introduced(finding)} {title}"
            lines += paragraph(below, width, "      ", "      ")
            continue
        lines += paragraph(title, width, f"  {mark} ", "      ")
        lines += paragraph(finding.advice, width, "      > ", "        ")
    return lines


def _notes(analysis: Analysis, width: int) -> list[str]:
    notes = sentences.notes(analysis)
    if not notes:
        return []
    return ["NOTES", *(line for note in notes for line in paragraph(note, width, "  ", "    "))]
