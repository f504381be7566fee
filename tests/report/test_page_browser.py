# SPDX-License-Identifier: Apache-2.0
"""The page in Chromium, opened as the file that it is, with no other host to be found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from waiting import awaited

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.results.summary import summarise
from megatron.torch_trace.report.html import render_html

HOSTILE = "</script><img src=x onerror=document.title='hacked'>"


@pytest.fixture(scope="module")
def file(spans: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with spans of modules, and with a kernel whose name would like to run."""
    first, *others = spans.ranks
    heaviest, *rest = first.kernels
    hostile = (replace(heaviest, name=HOSTILE), *rest)
    ranks = (replace(first, kernels=hostile), *others)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_html(replace(spans, ranks=ranks, summary=summarise(ranks))))
    return path


@pytest.fixture(scope="module")
def noise() -> list[str]:
    """What the console said and what was asked of the network."""
    return []


@pytest.fixture(scope="module")
def opened(browser: Any, file: Path, noise: list[str]) -> Iterator[Any]:
    """The page, opened once; opening takes longer than all that the tests do with it."""
    found = browser.new_page()
    found.on("console", lambda message: noise.append(message.text))
    found.on("pageerror", lambda error: noise.append(str(error)))
    address = file.as_uri()
    found.on(
        "request",
        lambda one: one.url.startswith((address, "data:")) or noise.append(one.url),
    )
    found.goto(address)
    yield found
    found.close()


@pytest.fixture
def page(opened: Any) -> Any:
    """The page on a wide screen and with no filter set, whatever the test before did."""
    opened.emulate_media(media="screen")
    opened.set_viewport_size({"width": 1280, "height": 900})
    opened.locator("#search").fill("")
    opened.locator("#ranks-filter").fill("")
    opened.evaluate("document.activeElement.blur()")
    return opened


def test_a_hostile_name_is_text(page: Any) -> None:
    assert HOSTILE in page.locator("#kernels").inner_text()
    assert page.locator("img[src='x']").count() == 0
    assert page.title() != "hacked"


@pytest.mark.parametrize("width", [1280, 768, 390])
def test_nothing_stands_out_of_the_window(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    for block in page.locator("details").all():
        block.evaluate("details => { details.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_nothing_stands_out_of_a_printed_page_and_tables_say_what_they_leave_out(page: Any) -> None:
    page.set_viewport_size({"width": 718, "height": 1000})  # A4 without its margins
    page.emulate_media(media="print")
    right = "[...document.querySelectorAll('table')].map(t => t.getBoundingClientRect().right)"
    assert max(page.evaluate(right)) <= 718
    below = "getComputedStyle(document.querySelector('#more-kernels'), '::after').content"
    rows = page.locator("#kernels tbody tr").count()
    assert page.evaluate(below) == f'"12 of {rows} rows"'


@pytest.mark.parametrize("width", [1280, 640, 390])
def test_the_times_below_the_lanes_do_not_overlap(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    boxes = page.evaluate(
        """[...document.querySelectorAll('.axis:last-of-type .words b')]
           .map(b => b.getBoundingClientRect()).filter(r => r.width).map(r => [r.left, r.right])"""
    )
    assert len(boxes) >= 3
    assert all(here[1] <= there[0] for here, there in pairwise(boxes))
    assert boxes[-1][1] <= width


@pytest.mark.parametrize(("width", "is_shown"), [(1280, False), (390, True)])
def test_the_first_finding_is_repeated_above_only_where_the_others_are_out_of_sight(
    page: Any, width: int, is_shown: bool
) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    assert page.locator(".lead").is_visible() is is_shown


def test_a_heading_sorts_its_column_and_again_the_other_way(page: Any) -> None:
    shares = (
        "[...document.querySelectorAll('#kernels tbody tr')].map(r => Number(r.cells[2].dataset.v))"
    )
    page.locator("#kernels th", has_text="calls").locator("button").click()
    falling = page.evaluate(shares)
    assert falling == sorted(falling, reverse=True)
    assert page.locator("#kernels th", has_text="calls").get_attribute("aria-sort") == "descending"
    page.locator("#kernels th", has_text="calls").locator("button").click()
    assert page.evaluate(shares) == falling[::-1]


def test_a_slash_searches_all_tables_and_escape_ends_it(page: Any) -> None:
    shown = page.locator("#kernels tbody tr:not(.gone)")
    before = shown.count()
    page.keyboard.press("/")
    page.keyboard.type("softmax")
    page.locator("#block-families tbody tr:not(.gone)").nth(1).wait_for(state="detached")
    rows = shown.all_inner_texts()
    assert rows
    assert all("softmax" in row.lower() for row in rows)
    page.keyboard.press("Escape")
    assert page.locator("#search").input_value() == ""
    assert shown.count() == before


def test_a_search_counts_marks_and_walks_its_matches_and_escape_returns(page: Any) -> None:
    page.evaluate("scrollTo({ top: 300, behavior: 'instant' })")
    page.keyboard.press("/")
    page.keyboard.type("softmax")
    page.keyboard.press("Enter")
    matches = page.locator("tr:not(.gone), .finding:not(.gone)", has_text="softmax").count()
    told = page.locator("#match-count").inner_text()
    assert told.startswith("1 of ")
    assert 0 < int(told.split()[-1]) <= matches
    assert "softmax" in page.locator(".current").inner_text().lower()
    assert page.evaluate("CSS.highlights.get('found').size") >= int(told.split()[-1])
    page.keyboard.press("Enter")
    assert page.locator("#match-count").inner_text().startswith("2 of ")
    page.keyboard.press("Shift+Enter")
    assert page.locator("#match-count").inner_text() == told
    page.keyboard.press("Escape")
    assert not page.locator("#matches").is_visible()
    assert awaited(page, lambda: page.evaluate("scrollY"), (300).__eq__) == 300


def test_a_number_finds_its_rank_and_no_other_number(page: Any) -> None:
    page.keyboard.press("/")
    page.keyboard.type("1")
    page.keyboard.press("Enter")
    assert page.locator("#ranks tbody tr:not(.gone) td:first-child").all_inner_texts() == ["1"]
    assert page.locator("#kernels tbody tr:not(.gone)").count() == 0
    page.keyboard.press("Escape")


def test_arrow_keys_walk_the_tree_of_modules(page: Any) -> None:
    row = page.locator("#tree-0 tr", has_text="self_attention").first
    row.focus()
    below = page.locator("#tree-0 tr:not(.gone)").count()
    page.keyboard.press("ArrowRight")
    assert row.get_attribute("aria-expanded") == "true"
    assert page.locator("#tree-0 tr:not(.gone)").count() > below
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-level')") == "4"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert row.get_attribute("aria-expanded") == "false"


def test_ranks_are_sorted_and_filtered(page: Any) -> None:
    ranks = page.locator("#ranks tbody tr:not(.gone) td:first-child")
    page.get_by_role("button", name="exposed communication").click()
    assert ranks.all_inner_texts() == ["1", "0"]
    page.locator("#ranks-filter").fill("pp0")
    assert ranks.all_inner_texts() == ["0"]


def test_the_heat_map_tells_a_rank_and_a_time_by_keys_and_adds_up_a_range(page: Any) -> None:
    canvas, told = page.locator("#heat-map canvas"), page.locator("#heat-told")
    canvas.focus()
    page.keyboard.press("ArrowDown")
    assert told.inner_text().startswith("Rank 1 (")
    canvas.evaluate("one => one.scrollIntoView({ block: 'center', behavior: 'instant' })")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 3)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 3, steps=4)
    page.mouse.up()
    assert "slices of all ranks that are mostly compute: " in told.inner_text()


def test_a_range_of_the_heat_map_filters_the_tables_that_know_moments_until_it_ends(
    page: Any,
) -> None:
    canvas, ranged = page.locator("#heat-map canvas"), page.locator("#block-kernels .ranged")
    rows = "[...document.querySelectorAll('#kernels tbody tr')]"
    canvas.focus()
    page.keyboard.press("Escape")
    assert ranged.inner_text() == ""
    before = page.locator("#kernels tbody tr:not(.gone)").count()
    canvas.evaluate("one => one.scrollIntoView({ block: 'center', behavior: 'instant' })")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 3)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 90, steps=4)  # ends below the map
    page.mouse.up()
    inside = page.evaluate(f"{rows}.filter(row => row.dataset.beside === undefined).length")
    assert 0 < inside < page.locator("#kernels tbody tr").count()
    assert (
        ranged.inner_text()
        == f"{inside} of {page.locator('#kernels tbody tr').count()} examples in the range"
    )
    assert page.locator("#block-ranks .ranged").inner_text() == "of the whole window"
    start, length = canvas.evaluate("one => [one.dataset.start, one.dataset.duration]")
    rank = canvas.get_attribute("data-rank")
    own = page.evaluate(
        f"{rows}.filter(row => row.dataset.rank === '{rank}').map(row => "
        "[row.dataset.start, row.dataset.duration, row.dataset.beside === undefined])"
    )
    assert own
    for begin, duration, is_inside in own:
        touches = int(start) <= int(begin) + int(duration) and int(begin) <= int(start) + int(
            length
        )
        assert touches == is_inside
    page.locator("#heat-everything").click()
    assert ranged.inner_text() == ""
    assert page.locator("#kernels tbody tr:not(.gone)").count() == before


def test_the_switch_goes_from_automatic_to_light_to_dark(page: Any) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(colour)
    page.locator("#theme").click()
    light = page.evaluate(colour)
    assert light == "rgb(255, 255, 255)"
    page.locator("#theme").click()
    assert page.evaluate(colour) == dark != light


def test_the_table_is_copied_with_full_names(page: Any) -> None:
    page.evaluate("navigator.clipboard.writeText = async text => { window.copied = text; }")
    page.locator("#block-kernels .copy").click()
    lines = page.evaluate("window.copied").splitlines()
    assert lines[0].startswith("kernel\tfamily\tcalls\tms")
    assert any("void at::native::" in line for line in lines)


def test_the_console_is_silent_and_no_request_leaves(noise: list[str]) -> None:
    assert noise == []


def test_what_one_looks_at_is_in_the_address(page: Any, browser: Any, file: Path) -> None:
    page.locator("#kernels th", has_text="calls").locator("button").click()
    page.locator("#search").fill("gemm")
    assert awaited(page, lambda: page.evaluate("location.hash.includes('q=gemm')"))
    address = page.evaluate("location.href")
    again = browser.new_page()
    again.goto(address)
    assert again.locator("#search").input_value() == "gemm"
    assert again.locator("#kernels th", has_text="calls").get_attribute("aria-sort") == "descending"
    again.close()
    again = browser.new_page()
    again.goto(f"{file.as_uri()}#kernels-40")
    assert again.locator("#kernels-40").is_visible()
    again.close()


def test_the_answer_and_a_table_are_copied_as_markdown(page: Any) -> None:
    page.evaluate("navigator.clipboard.writeText = async text => { window.copied = text; }")
    page.locator("#copy-answer").click()
    answer = page.evaluate("window.copied")
    assert answer.startswith("# ")
    assert "\n- **" in answer
    page.locator("#block-kernels .copy-markdown").click()
    lines = page.evaluate("window.copied").splitlines()
    assert lines[2].startswith("| kernel | family | calls |")
    assert lines[3].startswith("| --- | --- | ---: |")
    assert len(lines) == 4 + page.locator("#kernels tbody tr:not(.gone)").count()
