# SPDX-License-Identifier: Apache-2.0
"""Pages by axe-core, which says what people with a screen reader or a keyboard cannot use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megatron.torch_trace.analysis.compare.comparison import compare
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.report.comparison.page import render_comparison_page
from megatron.torch_trace.report.html import render_html

axe = pytest.importorskip(
    "axe_playwright_python", reason="axe-playwright-python of the extra [dev] is not installed"
)
SCREENS = ((1280, "light"), (390, "dark"))
"""Each width and each scheme once: only contrast has to do with the scheme, and takes most of the
time. A narrow page hides nothing that has a colour of its own."""
VIOLATIONS = "axe.run({resultTypes: ['violations']}).then(result => result.violations)"
"""All rules; nodes that break none are counted and not described."""


@pytest.fixture(scope="module")
def pages(
    tp2pp2: Analysis, spans: Analysis, tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    folder = tmp_path_factory.mktemp("pages")
    compared = render_comparison_page(compare(tp2pp2, spans), tp2pp2, spans, ("a", "b"))
    texts = {
        "report": render_html(tp2pp2),
        "spans": render_html(spans),
        "compare": compared,
        "modules": render_comparison_page(compare(spans, spans), spans, spans, ("a", "b")),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return [folder / f"{name}.html" for name in texts]


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_axe_finds_no_violation(browser: Any, pages: list[Path], width: int, scheme: str) -> None:
    source = (Path(axe.__file__).parent / "axe.min.js").read_text()
    found = []
    # The page's policy lets no script run but its own.
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
    )
    for file in pages:
        page = context.new_page()
        page.goto(file.as_uri())
        page.evaluate(source)
        violations = page.evaluate(VIOLATIONS)
        found += [(file.name, one["id"], one["nodes"][0]["html"][:120]) for one in violations]
        page.close()
    context.close()
    assert found == []
