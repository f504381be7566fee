# SPDX-License-Identifier: Apache-2.0
"""The answer on a terminal."""

from __future__ import annotations

from megatron.torch_profile.component.answer import sentences, tables
from megatron.torch_profile.component.answer.kept import page_of
from megatron.torch_profile.component.results import Answer
from megatron.torch_trace.report.table import paragraph
from megatron.torch_trace.report.table import render as render_table
from megatron.torch_trace.report.tables import Table
from megatron.torch_trace.report.text import LEAST_WIDTH, MOST_WIDTH
from megatron.torch_trace.wording import visible


def render(answer: Answer, *, width: int = MOST_WIDTH) -> str:
    """As plain text, in lines of 80 to 100 characters."""
    width = max(LEAST_WIDTH, min(width, MOST_WIDTH))
    drift = sentences.drift(answer)
    said = [*sentences.verdicts(answer), *([drift] if drift else [])]
    parts = [
        paragraph(sentences.head(answer), width, "", "  "),
        [line for one in said for line in paragraph(one, width, "", "  ")],
        _table(tables.variants(answer), width),
        _table(tables.ranks(answer), width),
        _roof(answer, width),
        _failures(answer, width, left_out=False),
        _failures(answer, width, left_out=True),
        _findings(answer, width),
        [f"Run folder: {answer.run_folder}", f"Page: {page_of(answer)}"],
    ]
    return visible("\n\n".join("\n".join(part) for part in parts if part) + "\n", lines=True)


def _table(one: Table, width: int) -> list[str]:
    return render_table(one, width) if one.rows else []


def _roof(answer: Answer, width: int) -> list[str]:
    said = [*sentences.ceilings(answer), *filter(None, map(sentences.roof, answer.results))]
    lines = [line for one in said for line in paragraph(one, width, "  ", "    ")]
    return ["ROOFLINE", *lines] if lines else []


def _failures(answer: Answer, width: int, *, left_out: bool) -> list[str]:
    failed = [one for one in answer.results if one.failure and one.left_out is left_out]
    lines = [
        line
        for one in failed
        for line in paragraph(f"{one.case.name}: {one.failure}", width, "  ", "    ")
    ]
    return ["LEFT OUT" if left_out else "FAILED", *lines] if lines else []


def _findings(answer: Answer, width: int) -> list[str]:
    lines = []
    for one in answer.results:
        for found in one.findings:
            source = f" ({found.source})" if found.source else ""
            said = f"{one.case.name}: finding {found.code}: {found.sentence}{source}"
            lines += paragraph(said, width, "  ", "    ")
    return ["FINDINGS", *lines] if lines else []
