# SPDX-License-Identifier: Apache-2.0
"""Processes of a launch of the long run, seen from outside: memory, threads, files, who is left."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

MARK = "LONG_RUN_LAUNCH"
"""In the environment of every process of a launch."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_BLOCKS = 20
_T_95 = 2.101
"""Of Student's distribution with `_BLOCKS` - 2 degrees of freedom, 95 %."""
LEAST_SAMPLES = 3 * _BLOCKS


@dataclass(frozen=True, slots=True)
class Sample:
    """One rank at one moment.

    Args:
        iteration: the last one that it has ended.
        resident: bytes of memory.
        threads, files, children: how many are there, are open, live below it.
    """

    rank: int
    iteration: int
    resident: int
    threads: int
    files: int
    children: int


def sample(rank: int, pid: int, iteration: int) -> Sample | None:
    """Look at a rank; None if it has ended."""
    here = Path(f"/proc/{pid}")
    try:
        resident = int((here / "statm").read_text().split()[1]) * _PAGE
        threads, files = len([*(here / "task").iterdir()]), len([*(here / "fd").iterdir()])
        return Sample(rank, iteration, resident, threads, files, len(descendants(pid)))
    except (OSError, IndexError):
        return None


def descendants(pid: int) -> list[int]:
    """Processes below one."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        with suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                below = [int(text) for text in (task / "children").read_text().split()]
                found += below
                waiting += below
    return found


def of_launch(mark: str) -> Iterator[tuple[int, str]]:
    """Living processes of a launch, and their command lines."""
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):
            ended = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if not ended and wanted in (folder / "environ").read_bytes().split(b"\0"):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                yield int(folder.name), words.decode(errors="replace").strip()


def wait_for_all(mark: str, seconds: float) -> tuple[float, list[str]]:
    """How long processes of a launch went on after its end, and those that are left."""
    began = time.monotonic()
    while left := [*of_launch(mark)]:
        if time.monotonic() - began > seconds:
            return seconds, [f"{pid} {words[:200]}" for pid, words in left]
        time.sleep(0.5)
    return time.monotonic() - began, []


def kill(pids: list[int]) -> None:
    """As if the node had died."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Slope:
    """How resident memory changes.

    Args:
        first_mb, last_mb: medians of the first and of the last of the blocks.
        kb: an iteration, by least squares over blocks of samples that follow each other.
        error_kb: of it; 95 % of the intervals `kb` ± `error_kb` hold the true slope.
    """

    first_mb: float
    last_mb: float
    kb: float
    error_kb: float

    def as_json(self) -> dict[str, float]:
        """Rounded."""
        return {name: round(value, 3) for name, value in asdict(self).items()}


def slope(points: Sequence[tuple[float, float]]) -> Slope | None:
    """Of bytes over iterations; None where there are too few."""
    if len(points) < LEAST_SAMPLES:
        return None
    each = len(points) / _BLOCKS
    blocks = [points[round(n * each) : round((n + 1) * each)] for n in range(_BLOCKS)]
    at = [fmean(x for x, _ in block) for block in blocks]
    kb = [median(y for _, y in block) / 1e3 for block in blocks]
    middle, mean = fmean(at), fmean(kb)
    spread = sum((x - middle) ** 2 for x in at)
    if not spread:
        return None
    rise = sum((x - middle) * (y - mean) for x, y in zip(at, kb, strict=True)) / spread
    rest = sum((y - mean - rise * (x - middle)) ** 2 for x, y in zip(at, kb, strict=True))
    error = _T_95 * (rest / (_BLOCKS - 2) / spread) ** 0.5
    return Slope(kb[0] / 1e3, kb[-1] / 1e3, rise, error)


def read_samples(file: Path) -> list[Sample]:
    """As they were written while the launch ran."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [Sample(**json.loads(line)) for line in lines]
