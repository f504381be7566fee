# SPDX-License-Identifier: Apache-2.0
"""A page with Perfetto that is left, in Chromium, while Perfetto still fetches the timeline."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from running_server import Running
from waiting import awaited

from megatron.torch_trace.viewing.perfetto_ui import ui_files
from megatron.torch_trace.viewing.preparation import Preparation
from megatron.torch_trace.viewing.site import TIMELINE, Reply, Site

FAILED = "Could not load local trace TypeError: Failed to fetch"


class SlowSite(Site):
    """Has the timeline asked for, and does not give it before it is told to."""

    def __init__(self, preparation: Preparation) -> None:
        super().__init__(preparation, ui_files())
        self.asked, self.given = threading.Event(), threading.Event()
        self.breaks = False

    def find(self, path: str) -> Reply | None:
        if path == TIMELINE:
            self.asked.set()
            self.given.wait()
            if self.breaks:
                raise RuntimeError("the server closes the connection")
        return super().find(path)


@pytest.fixture
def site(preparation: Preparation) -> SlowSite:
    return SlowSite(preparation)


@pytest.fixture
def running(site: SlowSite) -> Iterator[Running]:
    one = Running(site)
    yield one
    site.given.set()
    one.stop()


@pytest.fixture
def dialogs() -> list[str]:
    return []


@pytest.fixture
def page(browser: Any, running: Running, site: SlowSite, dialogs: list[str]) -> Iterator[Any]:
    """A page that fetches the timeline."""
    opened = browser.new_page()

    def close(dialog: Any) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    opened.on("dialog", close)
    opened.goto(f"http://127.0.0.1:{running.server.port}/timeline")
    assert awaited(opened, site.asked.is_set)
    yield opened
    opened.close()


# Without `leaving.js` four pages of ten stay, each at random.
@pytest.mark.parametrize("number", range(8))
def test_a_page_that_is_left_while_the_timeline_is_fetched_opens_no_dialog(
    page: Any, running: Running, dialogs: list[str], number: int
) -> None:
    page.goto(f"http://127.0.0.1:{running.server.port}/traces/")
    assert page.locator("h1").inner_text() == "Traces"
    assert dialogs == []


def test_a_timeline_that_cannot_be_fetched_is_told_in_a_dialog_if_the_page_stays(
    page: Any, site: SlowSite, dialogs: list[str]
) -> None:
    site.breaks = True
    site.given.set()
    assert awaited(page, lambda: dialogs) == [FAILED]
