# SPDX-License-Identifier: Apache-2.0
"""How much memory the browser tab of `torch-trace view` takes: report, and timeline in Perfetto.

    python benchmarks/view_memory.py rank-0.json.gz
    python benchmarks/view_memory.py rank-0.json.gz --ranks 4

Starts `view` of N copies of the trace that say to be different ranks, opens the printed address in
Chromium without a screen, and waits until the page says that the timeline is ready. Prints a
Markdown row; the tab is the process that holds report, Perfetto and its trace_processor. Its
resident memory when it is ready, and the most it ever was, count the code of the browser, 135 MB
that all its processes share. What is the tab's own is what Chromium's task manager shows; it is
printed when the timeline is ready, and again after garbage was collected, which the browser does by
itself some time. Needs Playwright, Chromium, Linux, and the extra [view].
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.convert import copies
from benchmarks.read_side import TOOL
from megatron.torch_trace.rewrite.decompression import estimated_raw_bytes
from megatron.torch_trace.wording import size

READY = "A click on a row shows it here."
KIB = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--ranks", type=int, default=1, metavar="N")
    parser.add_argument("--seconds", type=float, default=900, help="wait at most so long")
    given = parser.parse_args()
    if not given.trace.is_file():
        parser.error(f"{given.trace}: no such file; name the trace of a rank")
    environ = {name: value for name, value in os.environ.items() if name != "SSH_CONNECTION"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, trace in enumerate(copies(given.trace, given.ranks, folder)):
            if trace.parent != folder:
                shutil.copy(trace, folder / f"rank-{number}.json.gz")
        raw = sum(map(estimated_raw_bytes, folder.iterdir()))
        command = [*TOOL, "view", str(folder), "--no-browser"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as server:
            assert server.stdout is not None
            try:
                report(server.stdout.readline().strip(), given.ranks, raw, given.seconds)
            finally:
                server.terminate()


def report(address: str, ranks: int, raw: int, seconds: float) -> None:
    """Open the address and print the row."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(address)
        wait(page, seconds)
        page.wait_for_timeout(5000)
        now, peak, own = resident(os.getpid())
        page.context.new_cdp_session(page).send("HeapProfiler.collectGarbage")
        page.wait_for_timeout(3000)
        kept, _, own_kept = resident(os.getpid())
        timeline = page.request.head(f"{page.url}timeline.pftrace.gz").headers["content-length"]
        print("| JSON | ranks | timeline | when ready | peak | own | after a collection | own |")
        print("|---:|---:|---:|---:|---:|---:|---:|---:|")
        sizes = map(size, (int(timeline), now, peak, own, kept, own_kept))
        print(f"| {size(raw)} | {ranks} | {' | '.join(sizes)} |")
        browser.close()


def wait(page: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        state = page.locator("#timeline-state")
        told = state.inner_text() if state.count() else page.locator("main").inner_text()
        if told == READY:
            return
        page.wait_for_timeout(500)
    raise SystemExit(f"The timeline was not ready in {seconds:g} s; the page said: {told}")


def resident(parent: int) -> tuple[int, int, int]:
    """Bytes of the largest renderer below a process: now, the most it ever had, and its own."""
    found = [(0, 0, 0)]
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            command = status.with_name("cmdline").read_bytes()
            if b"--type=renderer" not in command:
                continue
            lines = _numbers(status)
            shares = _numbers(status.with_name("smaps_rollup"))
        except OSError:  # it has ended
            continue
        if is_below(int(status.parent.name), parent):
            own = shares["Private_Dirty"] + shares["Swap"]
            found.append((lines["VmRSS"], lines["VmHWM"], own))
    return max(found)


def _numbers(file: Path) -> dict[str, int]:
    """Lines such as `VmRSS:  12 kB`, in bytes."""
    words = [line.split() for line in file.read_text().splitlines()]
    return {one[0].rstrip(":"): KIB * int(one[1]) for one in words if one[2:] == ["kB"]}


def is_below(pid: int, parent: int) -> bool:
    while pid > 1:
        if pid == parent:
            return True
        try:
            text = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return False
        pid = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("PPid"))
    return False


if __name__ == "__main__":
    main()
