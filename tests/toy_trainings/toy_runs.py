# SPDX-License-Identifier: Apache-2.0
"""Processes of the toy training, what they print, and what they leave."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trace_builder import read
from warm_child import Child, WarmPython, warm_python

ROOT = Path(__file__).parents[2]
TOY = str(Path(__file__).with_name("toy_training.py"))
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'startup'}",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "KINETO_LOG_LEVEL": "99",
}
for name in ("RANK", "WORLD_SIZE"):
    ENVIRONMENT.pop(name, None)


SECONDS = 400.0
"""What is right may take long on a busy machine; what hangs is ended."""

_warm: list[WarmPython] = []


@contextmanager
def started_at_once() -> Iterator[None]:
    """Trainings are forks of a Python that has imported torch, which takes longer than they do."""
    with warm_python(ENVIRONMENT, ["torch", "torch.distributed.run"]) as warm:
        _warm.append(warm)
        yield
        _warm.remove(warm)


def python() -> str:
    """A program that is `python` and has imported torch, for torchrun and its ranks."""
    return str(_warm[-1].command)


def start(folder: Path, *options: str) -> Child:
    """A training, which leads a session and a group of its own."""
    return _warm[-1].start(TOY, str(folder), *options, environment=ENVIRONMENT)


def until(process: Child | subprocess.Popen[str], text: str) -> str:
    """Read output up to a line with a text."""
    assert process.stdout
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"{text!r} never came:\n{seen}")


def run(folder: Path, *options: str) -> tuple[int, str]:
    """A whole training: its status and its output."""
    return ended(start(folder, *options))


def ended(process: Child) -> tuple[int, str]:
    return process.ended(timeout=SECONDS)


def writes(gate: Path, *windows: str) -> None:
    """Let the traces of these windows be written: of a toy with `--saves-when GATE`."""
    gate.mkdir(exist_ok=True)
    for window in windows:
        (gate / window).touch()


def exists(path: Path) -> None:
    """Wait until it does."""
    end = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.01)


def losses(output: str) -> list[str]:
    """`step N LOSS`, also where the profiler's C++ has just begun the line."""
    return re.findall(r"step \d+ \S+", output)


def steps(folder: Path) -> list[str]:
    (path,) = folder.rglob("*.json.gz")
    events = read(path)["traceEvents"]
    return sorted(e["name"] for e in events if str(e.get("name")).startswith("ProfilerStep#"))


def check(path: Path) -> int:
    """What `torch-trace check` answers: 0 for a trace that is whole."""
    command = [sys.executable, "-m", "megatron.torch_trace", "check", str(path)]
    return subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, check=False, timeout=SECONDS
    ).returncode
