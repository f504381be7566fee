# SPDX-License-Identifier: Apache-2.0
"""How much memory the browser tab of `torch-trace view` takes: report, and timeline in Perfetto.

    python benchmarks/view_memory.py rank-0.json.gz
    python benchmarks/view_memory.py rank-0.json.gz --ranks 4

Starts `view` of N copies of the trace that say to be different ranks, opens the printed address in
Chromium without a screen, and waits until the page says that the timeline is ready. Prints a
Markdown row; the tab is the process that holds report, Perfetto and its trace_processor: its
resident memory when it is ready, and the most it ever was. Needs Playwright, Chromium, Linux, and
the extra [view].
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
        now, peak = resident(os.getpid())
        timeline = page.request.head(f"{page.url}timeline.pftrace.gz").headers["content-length"]
        print("| JSON | ranks | timeline, compressed | tab when ready | its peak |")
        print("|---:|---:|---:|---:|---:|")
        print(f"| {size(raw)} | {ranks} | {size(int(timeline))} | {size(now)} | {size(peak)} |")
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


def resident(parent: int) -> tuple[int, int]:
    """Bytes of the largest renderer below a process: now, and the most it ever had."""
    found = [(0, 0)]
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            command = status.with_name("cmdline").read_bytes()
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:  # it has ended
            continue
        if b"--type=renderer" in command and is_below(int(lines["Pid"]), parent):
            found.append(tuple(KIB * int(lines[name].split()[0]) for name in ("VmRSS", "VmHWM")))
    return max(found)


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
