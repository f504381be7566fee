# SPDX-License-Identifier: Apache-2.0
"""`torch-trace compare -o compare.html`: one self-contained page without scripts."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from markupsafe import Markup

from megatron.torch_trace.analysis.compare.comparison import Comparison
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_NAMES, BREAKDOWN_PARTS
from megatron.torch_trace.report.comparison.answer import answer
from megatron.torch_trace.report.comparison.sections import (
    configuration,
    configuration_sentence,
    sections,
)
from megatron.torch_trace.report.comparison.words import part_name
from megatron.torch_trace.report.html.environment import environment
from megatron.torch_trace.report.sentences import first_lines
from megatron.torch_trace.wording import duration

_PACKAGE = "megatron.torch_trace.report"
_ROWS, _RANKS = 100, 1024


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
    style = resources.files(_PACKAGE).joinpath("templates", "compare.css").read_text("utf-8")
    page = environment((_PACKAGE, "templates")).get_template("compare.html")
    return page.render(
        names=names,
        heads=(first_lines(a), first_lines(b)),
        answer=answer(comparison),
        bars=_bars(comparison),
        part_names=BREAKDOWN_NAMES,
        said=configuration_sentence(comparison),
        configuration=configuration(comparison, top=_ROWS),
        appeared=comparison.appeared,
        vanished=comparison.vanished,
        sections=sections(comparison, top=_ROWS, ranks=_RANKS),
        style=Markup(style),
    )


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
