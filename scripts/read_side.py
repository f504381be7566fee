# SPDX-License-Identifier: Apache-2.0
"""The read side alone, installed into a new environment of another Python."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from compatibility_results import ROOT, Result, last_error, today

RECORDED = "tests/data/tp2pp2-spans"


def read_side(python: str, scratch: Path) -> tuple[str, Result]:
    """Install the read side alone into a new environment of a Python, and analyse a recorded run.

    Returns:
        The name of the cell, and what came out: it holds if the answers are those of this Python.
    """
    environment = Path(tempfile.mkdtemp(dir=scratch))
    subprocess.run([python, "-m", "venv", str(environment)], check=True)
    other = environment / "bin" / "python"
    told = "import platform; print(platform.python_version())"
    version = subprocess.check_output([other, "-c", told], text=True).strip()
    result = Result(today(), False, "", {"python": version})
    name = f"read Python {version.rpartition('.')[0]}"
    installed = subprocess.run(
        [other, "-m", "pip", "install", "--quiet", str(ROOT)], capture_output=True, text=True
    )
    if installed.returncode:
        result.found = f"the installation fails: {last_error(installed.stderr)}"
        return name, result
    for command in (["analyze", "--json", "--no-gains"], ["info"], ["check"]):
        ours, theirs = (
            subprocess.run(
                [one, "-m", "megatron.torch_trace", *command, str(ROOT / RECORDED)],
                capture_output=True, text=True, cwd=scratch, env=_without_path(one == other),
            )
            for one in (sys.executable, other)
        )  # fmt: skip
        if theirs.returncode or ours.returncode or not same(ours.stdout, theirs.stdout):
            why = last_error(theirs.stderr) if theirs.returncode else "another answer"
            result.found = f"torch-trace {command[0]}: {why}"
            return name, result
    result.works = True
    result.found = "analyze, info and check say the same, whole numbers and words to the last digit"
    return name, result


def old_trace(python: str, scratch: Path) -> tuple[str, Result]:
    """Record a loop with the torch of another Python, and read its trace with this Python.

    Returns:
        The name of the cell, and what came out: it holds if all commands read all steps.
    """
    folder = Path(tempfile.mkdtemp(dir=scratch))
    trace = folder / "rank-0.pt.trace.json"
    told = "import platform, torch; print(platform.python_version(), torch.__version__)"
    # Its own packages alone: those of this Python are too new for it.
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = subprocess.check_output([python, "-c", told], text=True, env=own).split("+")[0].split()
    versions = dict(zip(("python", "torch"), words, strict=True))
    result, name = Result(today(), False, "", versions), f"read traces of torch {versions['torch']}"
    loop = [python, str(ROOT / "scripts" / "profiled_loop.py"), str(trace)]
    recorded = subprocess.run(loop, capture_output=True, text=True, env=own)
    if recorded.returncode:
        result.judged = False
        result.found = f"it records nothing: {last_error(recorded.stderr)}"
        return name, result
    answers = {}
    for words in _READS:
        command = [sys.executable, "-m", "megatron.torch_trace", words[0], str(trace), *words[1:]]
        read = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, env=_without_path(False)
        )
        if read.returncode:
            result.found = f"torch-trace {words[0]}: {last_error(read.stderr)}"
            return name, result
        answers[words[0]] = read.stdout
    count = len(json.loads(answers["analyze"])["ranks"][0]["steps"])
    operators = sum(one["ph"] == "X" for one in json.loads(trace.read_text())["traceEvents"])
    result.works = count == 2
    result.found = (
        f"analyze, info, check, slim and convert read {count} steps of 2, {operators:,} slices"
    )
    return name, result


_READS = (
    ("analyze", "--json"),
    ("info",),
    ("check",),
    ("slim", "-o", "slim.json.gz", "--preset", "perfetto"),
    ("convert", "-o", "rank.pftrace"),
)


def same(one: str, other: str) -> bool:
    """Whether two answers are the same; from 3.12 on Python adds fractions more exactly."""
    if one == other:
        return True
    fraction = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
    if fraction.sub("", one) != fraction.sub("", other):
        return False
    pairs = zip(fraction.findall(one), fraction.findall(other), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=1e-12) for a, b in pairs)


def _without_path(installed: bool) -> dict[str, str]:
    """The environment, with this checkout on PYTHONPATH only for the Python that lacks it."""
    path = "" if installed else str(ROOT)
    return os.environ | {"PYTHONPATH": path, "COLUMNS": "100"}
