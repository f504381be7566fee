# SPDX-License-Identifier: Apache-2.0
"""More ranks than a timeline shows, in Chromium: one is clicked, and loaded, and moved to."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_visit import Visit
from command_line import MAIN
from trace_builder import GEMM, TraceBuilder
from waiting import awaited

COUNT = 20
READY = "A click on a row shows it here."


def window(folder: Path) -> Path:
    """Twenty ranks of one job, each of them busy at another time."""
    for rank in range(COUNT):
        own = {"coordinates": {"tp": 0, "pp": 0, "dp": rank}}
        trace = TraceBuilder(rank, COUNT, own=own).step(1, 0, 6_000_000)
        begin = 500_000 + 50_000 * rank
        trace.gpu(GEMM, begin, begin + 1_000_000, launch=400_000)
        trace.collective(3_000_000, 4_000_000, size=COUNT, stream=13)
        trace.gpu(GEMM, 4_100_000, 5_900_000, launch=3_500_000)
        trace.write(folder / f"rank-{rank:02d}.pt.trace.json.gz")
    return folder


@pytest.fixture(scope="module")
def visit(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    folder = window(tmp_path_factory.mktemp("many") / "window")
    process = subprocess.Popen(
        [*MAIN, "view", str(folder), "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "SSH_CONNECTION"},
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    made = Visit(page, address.partition("?")[0])
    page.goto(address)
    assert awaited(page, lambda: told(made), READY.__eq__) == READY
    yield made
    page.close()
    process.terminate()
    process.communicate(timeout=300)


def told(visit: Visit) -> str:
    state = visit.page.locator("#timeline-state")
    return state.inner_text() if state.count() else ""


def tracks(visit: Visit) -> set[int]:
    """The ranks that have a track."""
    names = visit.perfetto("app.trace.workspace.children.map(row => row.name)")
    return {int(name.split()[1]) for name in names if name.startswith("rank ")}


def absent(visit: Visit) -> list[int]:
    answer = visit.page.request.get(f"{visit.address}offsets").json()
    return sorted(set(range(COUNT)) - set(map(int, answer["offset_ns"])))


def test_a_click_on_a_rank_that_is_not_shown_offers_to_load_it_and_moves_there(
    visit: Visit,
) -> None:
    (rank, *_) = absent(visit)
    row = visit.page.locator(f"#ranks tr[data-rank='{rank}']")
    if not row.is_visible():
        visit.page.locator("#more-ranks").click()
    row.locator("td").first.click()
    assert told(visit) == f"Rank {rank} is not among the ranks of the timeline."
    offer = visit.page.locator("#load-rank")
    assert offer.inner_text() == f"Load rank {rank}"
    before = tracks(visit)
    offer.click()
    moved = f"Rank {rank} at "
    assert awaited(visit.page, lambda: told(visit), lambda now: now.startswith(moved))
    assert not offer.is_visible()
    now = tracks(visit)
    assert rank in now
    assert len(now) == len(before) == 16
    assert len(now - before) == 1
    _, begin, end = visit.moment_of(row)

    def holds(shown: tuple[int, int]) -> bool:
        return shown[0] <= begin < end <= sum(shown)

    assert holds(awaited(visit.page, visit.visible, holds))
    assert visit.page.locator("iframe").count() == 1


def test_ranks_are_chosen_by_hand_and_the_field_tells_which_are_shown(visit: Visit) -> None:
    field = visit.page.locator("#choose-ranks input")
    assert visit.page.locator("#choose-ranks output").inner_text() == "at most 16 of 0-19"
    field.fill("0-2, 17")
    field.press("Enter")
    assert awaited(visit.page, lambda: told(visit), READY.__eq__) == READY
    assert awaited(visit.page, lambda: tracks(visit), {0, 1, 2, 17}.__eq__) == {0, 1, 2, 17}
    assert field.input_value() == "0-2, 17"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0-99", "Rank 20: no trace has this rank; there are 0-19."),
        ("<b>", "<b>: no rank, and no range of ranks such as 0-3."),
        ("", "No rank is named; 0-3,17 would be right."),
    ],
)
def test_what_names_no_ranks_is_told_and_the_timeline_stays(
    visit: Visit, text: str, sentence: str
) -> None:
    before = tracks(visit)
    visit.page.locator("#choose-ranks input").fill(text)
    visit.page.locator("#choose-ranks button").click()
    assert awaited(visit.page, lambda: told(visit), sentence.__eq__) == sentence
    assert tracks(visit) == before


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_the_page_is_as_wide_as_the_window(visit: Visit, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": 844})
    wide = awaited(visit.page, visit.width, width.__ge__)
    assert wide <= width
    assert visit.page.locator("#choose-ranks button").is_visible()
