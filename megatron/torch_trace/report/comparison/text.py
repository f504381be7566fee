# SPDX-License-Identifier: Apache-2.0
"""`torch-trace compare` on a terminal: the answer, what was configured otherwise, the tables."""

from __future__ import annotations

from collections.abc import Iterable

from megatron.torch_trace.analysis.compare.comparison import Comparison
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.report.comparison.answer import answer
from megatron.torch_trace.report.comparison.sections import (
    configuration,
    configuration_sentence,
    sections,
)
from megatron.torch_trace.report.sentences import first_lines
from megatron.torch_trace.report.table import paragraph, render
from megatron.torch_trace.report.tables import Table
from megatron.torch_trace.report.text import LEAST_WIDTH, MOST_WIDTH


def render_comparison(
    comparison: Comparison,
    a: Analysis,
    b: Analysis,
    names: tuple[str, str],
    *,
    width: int = MOST_WIDTH,
    top: int = 8,
) -> str:
    """The comparison as plain text.

    Args:
        comparison: what to render.
        a, b: the analyses, for the two lines that say what they are.
        names: what the user called them.
        width: columns of the terminal; lines are 80 to 100 wide, whatever it is.
        top: rows in the tables of work.
    """
    width = max(LEAST_WIDTH, min(width, MOST_WIDTH))
    said = configuration_sentence(comparison)
    sides = [f"A  {names[0]}: {first_lines(a)}", f"B  {names[1]}: {first_lines(b)}"]
    parts = [
        [line for side in sides for line in paragraph(side, width, "", "   ")],
        [line for text in answer(comparison) for line in paragraph(text, width, "", "  ")],
        paragraph(said, width, "", "  ") if said else [],
        _table(configuration(comparison, top=top), width),
        _findings("FINDINGS THAT ONLY B HAS", comparison.appeared, width),
        _findings("FINDINGS THAT ONLY A HAS", comparison.vanished, width),
        *(_table(one, width) for one in sections(comparison, top=top)),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _findings(heading: str, findings: Iterable[Finding], width: int) -> list[str]:
    lines = [line for one in findings for line in paragraph(one.title, width, "  ", "    ")]
    return [heading, *lines] if lines else []


def _table(table: Table, width: int) -> list[str]:
    return render(table, width) if table.rows else []
