# SPDX-License-Identifier: Apache-2.0
"""The page of memory in Chromium, opened as the file that it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import invoked
from waiting import awaited

PICTURE = "document.querySelector('canvas')?.toDataURL()"


@pytest.fixture(scope="module")
def noise() -> list[str]:
    """What the console said and what was asked of the network."""
    return []


@pytest.fixture(scope="module")
def page(
    browser: Any, pipeline: Path, noise: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("page") / "memory.html"
    invoked("memory", pipeline, "-o", path, "--gpu-memory", 1)
    found = browser.new_page(viewport={"width": 1280, "height": 900})
    found.on("console", lambda message: noise.append(message.text))
    found.on("pageerror", lambda error: noise.append(str(error)))
    address = path.as_uri()
    found.on("request", lambda one: one.url.startswith((address, "data:")) or noise.append(one.url))
    found.goto(address)
    yield found
    found.close()


def test_every_stage_is_drawn(page: Any) -> None:
    drawn_charts = "document.documentElement.dataset.drawn"
    assert awaited(page, lambda: page.evaluate(drawn_charts), "4".__eq__) == "4"
    assert page.locator("canvas").count() == 4
    drawn = """canvas => {
        const found = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        return new Set(new Uint32Array(found.buffer)).size;
    }"""
    assert all(one.evaluate(drawn) > 5 for one in page.locator("canvas").all())


def test_the_cursor_reads_every_chart_at_one_moment(page: Any) -> None:
    page.locator("#plot-0 .u-over").hover(position={"x": 900, "y": 60})

    def are_read() -> bool:
        words = [one.inner_text() for one in page.locator(".readout").all()]
        return all("in use" in one and "reserved" in one for one in words)

    assert awaited(page, are_read)


def test_the_axis_goes_up_to_what_the_gpu_has_when_asked(page: Any) -> None:
    before = page.evaluate(PICTURE)
    page.locator("#to-capacity").check()
    # The chart is made anew: for a moment there is none.
    assert awaited(page, lambda: page.evaluate(PICTURE), lambda now: now not in (None, before))
    assert awaited(page, page.locator("canvas").count, (4).__eq__) == 4
    page.locator("#to-capacity").uncheck()


def test_a_click_on_a_frame_widens_it_and_another_one_shows_all(page: Any) -> None:
    frame = page.locator(".icicle button", has_text="mlp.py:3 forward").first
    narrow = frame.bounding_box()["width"]
    frame.click()

    def width() -> float:
        return float(frame.bounding_box()["width"])

    assert awaited(page, width, lambda now: now > 1.5 * narrow) > 1.5 * narrow
    frame.click()
    as_before = pytest.approx(narrow, abs=1)
    assert awaited(page, width, lambda now: now == as_before) == as_before


@pytest.mark.parametrize("width", [1280, 768, 390])
def test_nothing_stands_out_of_the_window(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    for block in page.locator("details").all():
        block.evaluate("details => { details.open = true; }")
    page.wait_for_function(
        "[...document.querySelectorAll('.uplot')].every(u => u.clientWidth <= innerWidth)"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    rows = "[...document.querySelectorAll('.holders tr')].map(row => row.clientHeight)"
    assert max(page.evaluate(rows)) < 150
    page.set_viewport_size({"width": 1280, "height": 900})


def test_dark_mode_is_drawn_in_its_own_colours(page: Any) -> None:
    light = page.evaluate("document.querySelector('canvas').toDataURL()")
    page.emulate_media(color_scheme="dark")
    # The chart is made anew: for a moment there is none.
    page.wait_for_function(
        "light => ![undefined, light].includes(document.querySelector('canvas')?.toDataURL())",
        arg=light,
    )
    page.emulate_media(color_scheme="light")


def test_the_page_was_quiet_and_asked_for_nothing(page: Any, noise: list[str]) -> None:
    assert page.title() != "hacked"
    assert noise == []
