# SPDX-License-Identifier: Apache-2.0
"""Pages of `torch-trace view` by axe-core, with Perfetto in its frame left out: it is not ours."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import MAIN
from running_server import Running
from test_other_ranks_browser import READY as SHOWN
from test_other_ranks_browser import window
from waiting import awaited

from megatron.torch_trace.viewing.preparation import Preparation
from megatron.torch_trace.viewing.progress import FAILED, READY, WORKING, Progress
from megatron.torch_trace.viewing.site import Site

axe = pytest.importorskip(
    "axe_playwright_python", reason="axe-playwright-python of the extra [dev] is not installed"
)
SCREENS = (((1440, 900), "light"), ((390, 844), "dark"))
"""Each size and each scheme once: only contrast has to do with the scheme."""


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    # The pages' policies let no script run but their own.
    opened = browser.new_page(bypass_csp=True)
    yield opened
    opened.close()


def violations(page: Any, name: str) -> list[tuple[str, int, str, str, str]]:
    """What axe says of the page that is open on each screen."""
    page.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text())
    found = []
    for (width, height), scheme in SCREENS:
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        said = page.evaluate("axe.run(document, { iframes: false })")["violations"]
        found += [(name, width, scheme, one["id"], one["nodes"][0]["html"][:120]) for one in said]
    return found


def test_axe_finds_no_violation_around_perfetto(page: Any, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*MAIN, "view", str(window(tmp_path / "window")), "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "SSH_CONNECTION"},
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    try:
        page.goto(address)
        state = page.locator("#timeline-state")
        told = awaited(page, lambda: state.inner_text() if state.count() else "", SHOWN.__eq__)
        assert told == SHOWN
        assert page.locator("#choose-ranks").is_visible()
        found = violations(page, "report and timeline")
        page.locator("#choose-ranks input").fill("0-19")
        page.keyboard.press("Enter")
        assert "16" in awaited(page, state.inner_text, lambda now: "Asking" not in now)
        found += violations(page, "ranks that are too many")
        page.locator("#toggle-timeline").click()
        found += violations(page, "hidden timeline")
        for path, shown in (("timeline", "iframe"), ("traces/", "h1")):
            page.goto(f"{address.partition('?')[0]}{path}")
            page.locator(shown).wait_for()
            found += violations(page, path)
    finally:
        process.terminate()
        process.communicate(timeout=300)
    assert found == []


@pytest.mark.parametrize("state", [WORKING, FAILED])
def test_axe_finds_no_violation_while_a_page_is_made_or_if_it_cannot_be(
    page: Any, preparation: Preparation, ui: dict[str, Path], state: str
) -> None:
    preparation.reporting = preparation.timeline = Progress(state, "The reason in a sentence.")
    running = Running(Site(preparation, ui))
    found = []
    try:
        for path in ("", "timeline"):
            page.goto(f"http://127.0.0.1:{running.server.port}/{path}")
            page.locator("h1").wait_for()
            found += violations(page, f"{state} {path}")
    finally:
        running.stop()
    assert found == []


def test_what_a_waiting_page_says_changes_in_place_until_the_report_is_there(
    page: Any, preparation: Preparation, ui: dict[str, Path]
) -> None:
    preparation.reporting = Progress(WORKING, "3 of 8 traces done.")
    running = Running(Site(preparation, ui))
    try:
        page.goto(f"http://127.0.0.1:{running.server.port}/#findings")
        page.evaluate("window.isTheSame = true")
        said = page.locator("#being-made")
        assert said.inner_text() == "3 of 8 traces done."
        preparation.reporting = Progress(WORKING, "4 of 8 traces done.")
        assert awaited(page, said.inner_text, "4 of 8 traces done.".__eq__)
        assert page.evaluate("window.isTheSame")
        preparation.reporting = Progress(READY, "Ready.")
        body = page.locator("body")
        assert awaited(page, body.inner_text, "the report".__eq__) == "the report"
        assert page.url.endswith("/#findings")
    finally:
        running.stop()
