# SPDX-License-Identifier: Apache-2.0
"""Processes of the toy training, what they print, and what they leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from trace_builder import read

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


def start(folder: Path, *options: str, own_group: bool = False) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, TOY, str(folder), *options],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=own_group,
        preexec_fn=_as_on_a_terminal,
    )


def _as_on_a_terminal() -> None:
    """A closed terminal ends the process, also where the tests run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def until(process: subprocess.Popen[str], text: str) -> str:
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


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def losses(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("step ")]


def steps(folder: Path) -> list[str]:
    (path,) = folder.rglob("*.json.gz")
    events = read(path)["traceEvents"]
    return sorted(e["name"] for e in events if str(e.get("name")).startswith("ProfilerStep#"))


def check(path: Path) -> int:
    """What `torch-trace check` answers: 0 for a trace that is whole."""
    command = [sys.executable, "-m", "megatron.torch_trace", "check", str(path)]
    return subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, check=False, timeout=120
    ).returncode
