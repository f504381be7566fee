# SPDX-License-Identifier: Apache-2.0
"""The browser of the tests that look at pages, and marks of what a test starts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Proof that nothing leaves: there is nowhere to go.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost",
]


_OF_FOLDERS = {
    "functional": pytest.mark.torchrun,
    "toy_trainings": pytest.mark.torchrun,
    "slurm": pytest.mark.slurm,
    "hostile": pytest.mark.slow,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by what they start, so that a new one is never forgotten."""
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if folder in _OF_FOLDERS:
            item.add_marker(_OF_FOLDERS[folder])
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium that finds no host but this one; tests are skipped where it is not installed."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed", exc_type=ImportError
    )
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=chromium, headless=True, args=_FLAGS)
        yield launched
        launched.close()
