# SPDX-License-Identifier: Apache-2.0
"""Report and timeline in Chromium, from `torch-trace view`, with no other host to be found."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from browser_visit import Visit
from command_line import MAIN
from waiting import awaited

from megatron.torch_trace.viewing.preparation import READY, Preparation, Progress
from megatron.torch_trace.viewing.server import Server
from megatron.torch_trace.viewing.site import Site

SAMPLE = Path(__file__).parents[1] / "data" / "tp2pp2"
HOSTILE = "</script><img src=x onerror=document.title='hacked'>"
LOOKS = 50
"""At a row, 50 ms apart: where it has been for so long it stays."""
HARMLESS = {
    "directive 'navigate-to'": "the UI's own policy names a directive that Chromium has dropped",
    "is_internal_user.js": "the UI asks Google whether its user works there; our policy forbids it",
    "http://127.0.0.1:9001/": "the UI looks for a native trace_processor; our policy forbids it",
    "document not ready yet": "the UI answers the first PINGs of the page that embeds it",
    "live_reload": "the UI, built for developers, asks whether it is to be loaded anew",
    "LiveReload SSE error": "the same, said a second time",
}
"""Parts of messages on the console that may be there, and why."""
RANKS = [
    "rank 00 GPU (tp0 pp0 dp0)",
    "rank 00 CPU 10000",
    "rank 01 GPU (tp1 pp0 dp0)",
    "rank 01 CPU 20000",
    "rank 02 GPU (tp0 pp1 dp0)",
    "rank 02 CPU 30000",
    "rank 03 GPU (tp1 pp1 dp0)",
    "rank 03 CPU 40000",
]
"""The rows at the top of the sample's timeline."""
NOTE_WHEN_READY = """
if (window === top) addEventListener("DOMContentLoaded", () => {
  const state = document.querySelector("#timeline-state");
  const titles = () => {
    const { contentDocument } = document.querySelector("iframe");
    return [...contentDocument.querySelectorAll(".pf-track")].map((track) => track.innerText);
  };
  if (state) new MutationObserver(() => {
    if (state.textContent.startsWith("A click")) window.tracksWhenReady ??= titles();
  }).observe(state, { childList: true });
});
"""
"""Keeps the tracks that are drawn at the very moment in which the page says that it is ready."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, with a kernel in it whose name would like to run."""
    found = tmp_path_factory.mktemp("traces") / "tp2pp2"
    shutil.copytree(SAMPLE, found)
    trace = found / "rank-0.pt.trace.json.gz"
    text = gzip.decompress(trace.read_bytes()).replace(
        b"ncclDevKernel_SendRecv(", HOSTILE.encode() + b"("
    )
    trace.write_bytes(gzip.compress(text, 1))
    return found


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [*MAIN, "view", str(folder), "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "SSH_CONNECTION"},
    )
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.terminate()
    process.communicate(timeout=300)


@pytest.fixture(scope="module")
def visit(browser: Any, address: str) -> Iterator[Visit]:
    """The report with the timeline beside it, loaded."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    made = Visit(page, address.partition("?")[0])
    made.see(page)
    page.add_init_script(NOTE_WHEN_READY)
    page.goto(address)
    # The page is there at once, and becomes the report when that is made.
    page.locator("iframe").wait_for(timeout=240_000)
    page.frame_locator("iframe").locator(".pf-track").first.wait_for(timeout=240_000)
    yield made
    page.close()


def test_when_it_is_ready_the_ranks_are_tracks_in_their_order_and_nothing_else_is_there(
    visit: Visit,
) -> None:
    titles = awaited(visit.page, lambda: visit.page.evaluate("window.tracksWhenReady"))
    assert [title.splitlines()[-1] for title in titles or []] == RANKS


def _holds(shown: tuple[int, int], begin: int, end: int) -> bool:
    """Whether [begin, end) is in sight and large enough to be seen."""
    return shown[0] <= begin and end <= sum(shown) and shown[1] < 10 * (end - begin)


def test_a_click_on_a_row_moves_the_timeline_there(visit: Visit) -> None:
    before = visit.visible()
    rows = visit.page.locator("tr[data-start]:visible")
    lengths = rows.evaluate_all("rows => rows.map(row => Number(row.dataset.duration))")
    row = rows.nth(lengths.index(min(lengths)))
    row.locator("td").first.click()
    _, begin, end = visit.moment_of(row)
    start, duration = awaited(visit.page, visit.visible, lambda shown: _holds(shown, begin, end))
    assert start <= begin < end <= start + duration
    assert duration < before[1] / 10


@pytest.mark.parametrize("way", ["pointer", "keys"])
def test_a_part_of_the_critical_path_moves_the_timeline_to_its_longest_segment(
    visit: Visit, way: str
) -> None:
    strip = visit.page.locator("#critical-path .strip")
    strip.evaluate("one => one.scrollIntoView({ block: 'center', behavior: 'instant' })")
    if way == "pointer":
        part = strip.locator("i[data-start]").nth(2)
        part.click()
    else:
        strip.focus()
        visit.page.keyboard.press("Home")
        visit.page.keyboard.press("Enter")
        part = strip.locator("i").first
    _, begin, end = visit.moment_of(part)
    shown = awaited(visit.page, visit.visible, lambda shown: _holds(shown, begin, end))
    assert shown[0] <= begin < end <= sum(shown)
    assert part.get_attribute("tabindex") is None


def test_a_range_of_the_heat_map_moves_the_timeline_to_it(visit: Visit) -> None:
    canvas = visit.page.locator("#heat-map canvas")
    canvas.evaluate("one => one.scrollIntoView({ block: 'center', behavior: 'instant' })")
    box = canvas.bounding_box()
    visit.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 20)
    visit.page.mouse.down()
    visit.page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 20, steps=4)
    visit.page.mouse.up()
    rank, begin, end = visit.moment_of(canvas)
    start, duration = awaited(visit.page, visit.visible, lambda shown: _holds(shown, begin, end))
    assert rank == 1
    assert start <= begin < end <= start + duration
    assert duration < 4 * (end - begin)
    visit.page.locator("#heat-everything").click()
    visit.perfetto("app.trace.selection.clearSelection()")


def test_a_finding_about_a_span_marks_it_on_the_gpu_of_its_rank(visit: Visit) -> None:
    finding = visit.page.locator(".finding:not(.lead)", has_text="The pipeline bubble")
    finding.locator(".title").first.click()
    kind = "app.trace.selection.selection.kind"
    assert awaited(visit.page, lambda: visit.perfetto(kind), lambda now: now == "area") == "area"
    start, end, tracks = visit.perfetto(
        "(() => { const area = app.trace.selection.selection;"
        " const names = area.trackUris.map(uri => app.trace.workspace.getTrackByUri(uri).name);"
        " return [String(area.start), String(area.end), names]; })()"
    )
    rank, *moment = visit.moment_of(finding)
    assert [int(start), int(end)] == moment
    assert tracks
    assert {name[:7] for name in tracks} == {f"rank 0{rank}"}


def test_the_cpu_side_of_a_finding_is_the_main_thread_of_that_rank_in_sight(visit: Visit) -> None:
    button = visit.page.locator(".cpu-side:visible").first
    rank = int(button.get_attribute("data-rank"))
    button.click()
    in_sight = f"""(() => {{
      const title = [...document.querySelectorAll('.pf-track')]
        .findLast(one => /^rank 0*{rank} main thread/m.test(one.innerText));
      if (!title) return false;
      let around = title.parentElement;
      const scrolls = (one) => /auto|scroll/.test(getComputedStyle(one).overflowY);
      while (around && !scrolls(around)) around = around.parentElement;
      const row = title.getBoundingClientRect(), frame = around.getBoundingClientRect();
      return row.top >= frame.top && row.top + 60 <= frame.bottom;
    }})()"""
    # Perfetto scrolls once more when it has opened the group; the row must be there then, too.
    looks = [False]

    def stays_in_sight() -> bool:
        looks.append(bool(visit.perfetto(in_sight)))
        return len(looks) > LOOKS and all(looks[-LOOKS:])

    assert awaited(visit.page, stays_in_sight)


def test_perfetto_is_as_dark_as_the_page(visit: Visit) -> None:
    theme = (
        "document.querySelector('.pf-theme-provider--dark') ? 'dark' :"
        " document.querySelector('.pf-theme-provider--light') ? 'light' : 'unknown'"
    )
    for page, perfetto in (("light", "light"), ("dark", "dark"), ("auto", "light")):
        visit.page.locator("#theme").click()
        assert visit.page.locator("#theme").inner_text() == f"Theme: {page}"
        told = awaited(visit.page, lambda: visit.perfetto(theme), perfetto.__eq__)
        assert told == perfetto


def test_no_second_trace_processor_waits_for_a_second_trace(visit: Visit) -> None:
    assert len(visit.page.workers) == 1


def test_a_hostile_name_is_text(visit: Visit) -> None:
    names = "[...document.querySelectorAll('[title]')].map(one => one.title).join()"
    assert HOSTILE in visit.page.evaluate(names)  # in the table it is cut in the middle
    assert visit.page.locator("img[src='x']").count() == 0
    assert visit.page.title() != "hacked"


def test_the_console_holds_only_what_is_known_to_be_harmless(visit: Visit) -> None:
    assert [
        message for message in visit.console if not any(part in message for part in HARMLESS)
    ] == []


def test_the_token_is_neither_in_the_address_nor_readable_by_the_page(
    visit: Visit, address: str
) -> None:
    assert visit.page.url == visit.address
    token = address.partition("token=")[2]
    assert len(token) >= 32
    assert token not in visit.page.content() + visit.page.evaluate("document.cookie")


def test_a_browser_without_the_token_is_told_what_to_open(browser: Any, visit: Visit) -> None:
    page = browser.new_page()
    assert page.goto(visit.address).status == 403
    assert page.locator("body").inner_text().strip() == (
        "Open the address with the token that `torch-trace view` has printed."
    )
    page.close()


def test_no_request_leaves(visit: Visit) -> None:
    own = (visit.address, "data:", "blob:")
    assert [url for url in visit.answered if not url.startswith(own)] == []
    assert {
        url: why for url, why in visit.refused.items() if why != "csp" and not url.startswith(own)
    } == {}


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_as_wide_as_the_window(visit: Visit, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": 844})
    wide = awaited(visit.page, visit.width, width.__ge__)
    assert wide <= width


def test_the_timeline_alone_opens_by_the_address_that_the_browser_used(
    browser: Any, address: str
) -> None:
    through_a_tunnel = address.replace("127.0.0.1", "localhost")
    page = browser.new_page()
    page.goto(through_a_tunnel.replace("/?", "/timeline?"))
    page.frame_locator("iframe").locator(".pf-track").first.wait_for(timeout=240_000)
    assert "url=http%3A%2F%2Flocalhost%3A" in page.locator("iframe").get_attribute("src")
    alone = Visit(page, through_a_tunnel)
    rows = "app.trace.workspace.children.map(row => row.name)"
    assert awaited(page, lambda: alone.perfetto(rows), RANKS.__eq__) == RANKS
    page.close()


def test_the_public_ui_is_asked_to_open_the_timeline(browser: Any, tmp_path: Path) -> None:
    trace = tmp_path / "rank-0.json"
    trace.write_text("{}")
    preparation = Preparation([trace], whole_folder=True, links=None)
    preparation.timeline = Progress(READY, "", {0: 0})
    server = Server(Site(preparation, {}), host="127.0.0.1", port=0)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    page = browser.new_page()
    page.route("https://ui.perfetto.dev/**", lambda route: route.fulfill(body="the public UI"))
    page.goto(f"http://localhost:{server.port}/timeline")
    page.wait_for_url("https://ui.perfetto.dev/**")
    timeline = quote(f"http://127.0.0.1:{server.port}/timeline.pftrace.gz", safe="")
    assert page.url.startswith(f"https://ui.perfetto.dev/#!/?url={timeline}&")
    page.close()
    server.shutdown()
    server.server_close()
    thread.join()
