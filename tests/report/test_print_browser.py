# SPDX-License-Identifier: Apache-2.0
"""The printed page: nothing is cut in two, and headings stay with what they head.

Columns of a page's size stand for pages: the same rules break them, and a browser tells where.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from many_ranks import of_many

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.report.html import render_html

HEIGHTS = (500, 620, 850)
PAGES = """height => { Object.assign(document.querySelector('#main').style,
  { columns: '718px', columnGap: '0', columnFill: 'auto',
    height: `${height}px`, width: '718px' }); }"""
WHOLE = "figure, .finding, .lane, .scroll, .legend, .slim, tr"
CUT = f"""() => [...document.querySelectorAll('{WHOLE}')]
  .filter(one => new Set([...one.getClientRects()].map(box => Math.floor(box.left / 718))).size > 1)
  .map(one => one.outerHTML.slice(0, 120))"""
# Of each table: the pages of its caption, of its heading, and of its first two rows.
HEADS = """() => {
  const page = one => Math.floor((one.getClientRects()[0].left + 1) / 718);
  return [...document.querySelectorAll('table.data')].map(table => [
    page(table.closest('.block').querySelector('.caption')),
    page(table.tHead.rows[0]),
    ...[...table.tBodies[0].rows].filter(row => row.getClientRects().length).slice(0, 2).map(page),
  ]);
}"""


@pytest.fixture(scope="module")
def page(browser: Any, spans: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    file: Path = tmp_path_factory.mktemp("print") / "report.html"
    file.write_text(render_html(spans))
    opened = browser.new_page(viewport={"width": 718, "height": 1000})
    opened.emulate_media(media="print")
    opened.goto(file.as_uri())
    yield opened
    opened.close()


@pytest.mark.parametrize("height", HEIGHTS)
def test_no_figure_card_or_row_is_cut_in_two(page: Any, height: int) -> None:
    page.evaluate(PAGES, height)
    assert page.evaluate("document.querySelector('#main').scrollWidth") > 5 * 718
    assert page.evaluate(CUT) == []


@pytest.mark.parametrize("height", HEIGHTS)
def test_a_table_begins_on_the_page_of_its_caption(page: Any, height: int) -> None:
    page.evaluate(PAGES, height)
    found = page.evaluate(HEADS)
    assert len(found) > 10
    assert [pages for pages in found if len(set(pages)) > 1] == []


def test_the_heading_of_a_table_is_repeated_on_each_of_its_pages(page: Any) -> None:
    """Chromium repeats a heading that may not break and that holds no box that cannot."""
    heads = page.evaluate(
        """[...document.querySelectorAll('table.data thead')].map(head => [
          getComputedStyle(head).breakInside,
          ...[...head.querySelectorAll('button')].map(one => getComputedStyle(one).display)])"""
    )
    assert {word for head in heads for word in head} == {"avoid", "contents"}


def test_all_of_1024_ranks_are_on_one_page(browser: Any, spans: Analysis, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(render_html(of_many(spans, 1024)))
    many = browser.new_page(viewport={"width": 718, "height": 1000})
    many.goto(file.as_uri())
    many.emulate_media(media="print")
    high = many.evaluate("document.querySelector('#heat-map').getBoundingClientRect().height")
    assert 800 < high < 960  # of a page of US letter; one of A4 is higher
    many.evaluate(PAGES, 1000)
    assert many.evaluate(CUT) == []
    many.close()


def test_paper_is_told_of_no_keys_and_no_pointer(page: Any) -> None:
    told = page.locator("#main").inner_text()
    assert "Each row is a rank" in told
    assert not re.search(r"arrow keys|pointer|\bdrag\b|\bclick\b", told, re.IGNORECASE)
