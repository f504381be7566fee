# SPDX-License-Identifier: Apache-2.0
"""`torch-trace compare -o compare.html`: one self-contained page without scripts."""

from __future__ import annotations

from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from megatron.torch_trace.analysis.comparison import Comparison
from megatron.torch_trace.analysis.results import Analysis
from megatron.torch_trace.report.comparison_answer import answer
from megatron.torch_trace.report.comparison_sections import (
    configuration,
    configuration_sentence,
    sections,
)
from megatron.torch_trace.report.sentences import head

_PACKAGE = "megatron.torch_trace.report"
_ROWS, _RANKS = 100, 1024


def render_comparison_page(
    comparison: Comparison, a: Analysis, b: Analysis, names: tuple[str, str]
) -> str:
    """The comparison as a page; names of kernels are shown as text, whatever they hold.

    Args:
        comparison: what to render.
        a, b: the analyses, for the two lines that say what they are.
        names: what the user called them.
    """
    environment = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = resources.files(_PACKAGE).joinpath("templates", "compare.css").read_text("utf-8")
    return environment.get_template("compare.html").render(
        names=names,
        heads=(head(a), head(b)),
        answer=answer(comparison),
        said=configuration_sentence(comparison),
        configuration=configuration(comparison, top=_ROWS),
        appeared=comparison.appeared,
        vanished=comparison.vanished,
        sections=sections(comparison, top=_ROWS, ranks=_RANKS),
        style=Markup(style),
    )
