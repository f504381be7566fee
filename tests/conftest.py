# SPDX-License-Identifier: Apache-2.0
"""The browser, a Python that starts at once, and marks of what a test starts."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm_child
from hypothesis import HealthCheck, settings

# On a busy machine any example may take long to make and to test. The examples are the same in each
# run, so that no machine has bad luck; `--hypothesis-profile=others` draws others.
_ANY_MACHINE: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("others", **_ANY_MACHINE)
settings.register_profile("any machine", **_ANY_MACHINE, derandomize=True)
settings.load_profile("any machine")

# Before torch is imported: beside other folders its threads wait for each other, and compute as
# they wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")

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
_BROWSER_MS = 240_000
"""How long Chromium may need for a page or a click, in ms; Playwright's own 30 s are too short."""

_COLLECTION = Path(__file__).parents[2] / "shared"
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
        if folder in ("functional", "toy_trainings") and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1800))  # one may launch several jobs
        if _reads_the_larger_collection(item):
            item.add_marker(pytest.mark.slow)
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)


def _reads_the_larger_collection(item: pytest.Item) -> bool:
    """Recordings beside the checkout; of the samples within it there is one of each kind."""
    if "shared" in getattr(item, "fixturenames", ()):
        return True
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(isinstance(one, Path) and one.is_relative_to(_COLLECTION) for one in given)


def pytest_collection_finish() -> None:
    """Garbage is looked for seldom, and never in what the imports made: a sixth of the time."""
    gc.freeze()
    gc.set_threshold(100_000, 10, 10)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium that finds no host but this one; tests are skipped where it is not installed."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed", exc_type=ImportError
    )
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(
            executable_path=chromium, headless=True, args=_FLAGS, timeout=_BROWSER_MS
        )
        new_page = launched.new_page

        def patient_page(**options: Any) -> Any:
            page = new_page(**options)
            page.set_default_timeout(_BROWSER_MS)
            return page

        launched.new_page = patient_page
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def warm_python() -> Iterator[str]:
    """A program that is `python`, and has imported torch and others, which takes seconds."""
    # What libraries read when they are imported is what every program gets.
    environment = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with warm_child.warm_python({**os.environ, **environment}) as warm:
        yield str(warm.command)
