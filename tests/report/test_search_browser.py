# SPDX-License-Identifier: Apache-2.0
"""Search in Chromium: Escape returns to where the reader was, in whatever order things happen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.report.html import render_html

AT = 300
DEBOUNCE_MS = 300
TOLD = "document.querySelector('#match-count').textContent"
SHOWN = "document.querySelectorAll('#kernels tbody tr:not(.gone)').length"
# A field that is changed and asked within one task: no timer and no frame comes in between.
WRITE = """([text, key]) => {
  const field = document.querySelector('#search');
  field.value = text;
  field.dispatchEvent(new Event('input', { bubbles: true }));
  field.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
}"""


@pytest.fixture(scope="module")
def opened(
    browser: Any, spans: Analysis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    file: Path = tmp_path_factory.mktemp("search") / "report.html"
    file.write_text(render_html(spans))
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(file.as_uri())
    yield page
    page.close()


@pytest.fixture
def page(opened: Any) -> Any:
    """The page without a search, 300 px below its top."""
    opened.keyboard.press("Escape")
    opened.evaluate(f"scrollTo(0, {AT})")
    return opened


def test_escape_returns_on_a_slow_machine(page: Any) -> None:
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setCPUThrottlingRate", {"rate": 12})
    page.locator("#search").fill("")  # its timer and its scrolling are still under way at the slash
    page.evaluate(f"document.activeElement.blur(); scrollTo(0, {AT})")
    page.keyboard.press("/")
    page.keyboard.type("softmax")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    session.send("Emulation.setCPUThrottlingRate", {"rate": 1})
    assert page.evaluate("scrollY") == AT


def test_every_scrolling_of_the_page_ends_at_once(page: Any) -> None:
    """One that lasts would end after Escape has returned."""
    assert page.evaluate("scrollTo(0, 900), scrollY") == 900


def test_an_emptied_field_does_not_end_the_search(page: Any) -> None:
    page.keyboard.press("/")
    page.keyboard.type("a")
    page.keyboard.press("Backspace")
    page.wait_for_timeout(DEBOUNCE_MS)
    page.keyboard.type("softmax")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    assert page.evaluate("scrollY") == AT


def test_a_search_right_after_another_begins_where_the_first_returned(page: Any) -> None:
    page.keyboard.press("/")
    page.keyboard.type("softmax")
    page.keyboard.press("Enter")
    page.evaluate(
        """for (const key of ['Escape', '/', 'Escape']) {
             document.activeElement.dispatchEvent(
               new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
           }"""
    )
    assert page.evaluate("scrollY") == AT


def test_words_that_are_written_into_a_focused_field_out_of_sight_return_too(page: Any) -> None:
    page.locator("#search").evaluate("field => field.focus({ preventScroll: true })")
    page.keyboard.type("softmax")
    assert page.evaluate("scrollY") < AT
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    assert page.evaluate("scrollY") == AT


def test_a_reader_who_left_an_empty_field_is_not_brought_back(page: Any) -> None:
    page.keyboard.press("/")
    page.evaluate("document.activeElement.blur(); scrollTo(0, 500)")
    page.keyboard.press("Escape")
    assert page.evaluate("scrollY") == 500


def test_enter_asks_for_what_the_field_holds_now(page: Any) -> None:
    page.evaluate(WRITE, ["aten", "Enter"])
    of_operators = page.evaluate(TOLD)
    page.evaluate(WRITE, ["gemm", "Enter"])
    assert page.evaluate(TOLD).startswith("1 of ")
    assert page.evaluate(TOLD) != of_operators
    assert "gemm" in page.locator(".current").inner_text().lower()


def test_escape_in_a_field_that_was_just_emptied_shows_all_rows(page: Any) -> None:
    before = page.evaluate(SHOWN)
    page.evaluate(WRITE, ["softmax", "Enter"])
    assert page.evaluate(SHOWN) < before
    page.evaluate(WRITE, ["", "Escape"])
    assert page.evaluate(SHOWN) == before
    assert not page.locator("#matches").is_visible()
