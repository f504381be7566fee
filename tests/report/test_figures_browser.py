# SPDX-License-Identifier: Apache-2.0
"""Figures in Chromium: keys and a touch tell what the pointer's tooltip tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.report.html import render_html


@pytest.mark.parametrize("width", [1440, 390])
def test_arrow_keys_and_a_touch_tell_the_parts_of_every_figure(
    browser: Any, spans: Analysis, tmp_path: Path, width: int
) -> None:
    path = tmp_path / "report.html"
    path.write_text(render_html(spans))
    page = browser.new_page(viewport={"width": width, "height": 900}, has_touch=True)
    page.goto(path.as_uri())
    for name in (
        "#schedule",
        "#modules .icicle",
        "#modules .columns",
        "#arrival-fan",
        "#host .icicle",
    ):
        figure = page.locator(name).first
        parts, told = figure.locator("[title]"), figure.locator(".figure-told")
        count = parts.count()
        figure.focus()
        assert told.inner_text() == f"1 of {count}: {parts.first.get_attribute('title')}", name
        page.keyboard.press("End")
        assert told.inner_text() == f"{count} of {count}: {parts.last.get_attribute('title')}", name
        page.keyboard.press("Escape")
        assert told.inner_text() == "", name
        parts.first.tap()
        assert told.inner_text().startswith("1 of "), name
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_the_last_time_below_the_lanes_stays_within_a_narrow_window(
    browser: Any, tmp_path: Path
) -> None:
    samples = Path(__file__).parents[1] / "data" / "analysis"
    path = tmp_path / "report.html"
    path.write_text(render_html(analyze(samples / "slow-dataloader")))
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.goto(path.as_uri())
    words = page.locator(".words b").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().right)"
    )
    assert max(words) <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()
