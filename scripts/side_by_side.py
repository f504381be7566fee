# SPDX-License-Identifier: Apache-2.0
"""Run pytest on folders side by side, each in a process of its own; print what it says of each.

    python scripts/side_by_side.py FOLDER... [--at-once N] [--seconds N] [-- ARGUMENTS OF PYTEST]

Folders begin in the order in which they are named. One that lies in another one is tested apart
from it. A process that dies or takes too long makes its folder fail, and never keeps the others
from their end.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

NOTHING_TO_DO = 5
"""pytest's status where no test of a folder is asked for."""
_SUMMARY = re.compile(
    r"^=* ?(no tests ran|\d+ (passed|failed|skipped|deselected|errors?)\b).* in [\d.]+s"
)
_SECONDS_FOR_LAST_WORDS = 10


@dataclass(frozen=True)
class Ended:
    """What pytest said of a folder, and why the folder failed, if it did."""

    folder: str
    output: str
    failure: str
    seconds: float

    @property
    def summary(self) -> str:
        """pytest's own last line; what ends after pytest may have said more below the line."""
        return next((line.strip("= ") for line in self._lines() if _SUMMARY.match(line)), "")

    @property
    def last_line(self) -> str:
        return self.summary or next(self._lines(), "").strip("= ")

    def _lines(self) -> Iterator[str]:
        return reversed(self.output.strip().splitlines())

    def __str__(self) -> str:
        told = [self.failure] if self.failure else []
        return f"{self.folder:26} {self.seconds:5.0f} s  {': '.join([*told, self.last_line])}"


@dataclass
class Folders:
    """The processes that test folders, with what each of them is told."""

    folders: Sequence[str]
    arguments: Sequence[str]
    seconds: float
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    stopped: bool = False

    def test(self, folder: str) -> Ended:
        """Run pytest on a folder to its end, which comes after `seconds` at the latest."""
        if self.stopped:
            return Ended(folder, "", "not begun", 0)
        began = time.monotonic()
        apart = [f"--ignore={one}" for one in self.folders if one.startswith(f"{folder}/")]
        # A file and no pipe: what a test leaves running would hold a pipe open for ever.
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", folder, *apart, *self.arguments],
                env={**os.environ, "PYTEST_DEBUG_TEMPROOT": _temporary(folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.running.add(process)
            failure = self._end_of(process)
            self.running.discard(process)
            log.seek(0)
            output = log.read().decode(errors="replace")
        ended = Ended(folder, output, failure, time.monotonic() - began)
        return ended if failure or ended.summary else replace(ended, failure="ENDED EARLY")

    def _end_of(self, process: subprocess.Popen[bytes]) -> str:
        """Wait for pytest, end what its tests left running; says why it failed."""
        try:
            if self.stopped:
                return "stopped"
            return _failure(process.wait(self.seconds))
        except subprocess.TimeoutExpired:
            # pytest's faulthandler prints where each thread is.
            _signal(process, signal.SIGABRT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_FOR_LAST_WORDS)
            return f"NOT DONE after {self.seconds:.0f} s"
        finally:
            _signal(process, signal.SIGKILL)
            process.wait()

    def stop(self) -> None:
        self.stopped = True
        for process in tuple(self.running):
            _signal(process, signal.SIGKILL)


def _temporary(folder: str) -> str:
    """Where pytest makes `tmp_path`: in one place, processes fail as they remove old ones."""
    name = "-".join(Path(folder).parts[1:]) or folder
    path = Path(tempfile.gettempdir(), f"pytest-{os.getuid()}-{name}")
    path.mkdir(exist_ok=True)
    return str(path)


def _failure(status: int) -> str:
    if status in (0, NOTHING_TO_DO):
        return ""
    return f"DIED of {signal.Signals(-status).name}" if status < 0 else "FAILED"


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To pytest and to all processes of its session's group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def side_by_side(at_once: int, work: Folders) -> list[Ended]:
    """Test folders, some at once; print each when it has ended."""
    all_ended = []
    with ThreadPoolExecutor(at_once) as pool:
        try:
            for future in as_completed([pool.submit(work.test, folder) for folder in work.folders]):
                ended = future.result()
                all_ended.append(ended)
                print(f"\n{ended.folder}\n{ended.output}", flush=True)
        except BaseException:
            work.stop()
            raise
    return all_ended


def main() -> int:
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    # One more than there are cores: many tests wait.
    parser.add_argument("--at-once", type=int, default=min((cores or 1) + 1, 4), metavar="N")
    parser.add_argument("--seconds", type=float, default=1800, metavar="N", help="for a folder")
    given = parser.parse_args(words[:at])
    # As Ctrl-C does: whatever runs is ended on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    work = Folders(given.folders, words[at + 1 :], given.seconds)
    try:
        ended = side_by_side(given.at_once, work)
    except KeyboardInterrupt:
        return 130
    print(*sorted(ended, key=lambda one: bool(one.failure)), sep="\n")
    return int(any(one.failure for one in ended))


if __name__ == "__main__":
    sys.exit(main())
