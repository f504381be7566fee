# SPDX-License-Identifier: Apache-2.0
"""All benchmarks of benchmarks/evening.toml, one after the other, on one machine on one day.

    python benchmarks/evening.py OUT                  all that this machine has the GPUs for
    python benchmarks/evening.py OUT --only export components
    python benchmarks/evening.py OUT --seconds 540    begin none that would not end in time

One that has ended in OUT is not run again, so a second call goes on. OUT/NAME.log is what a
benchmark printed, OUT/NAME its files. OUT/evening.json says for each its command, when it began,
how long it took and how it ended, and once the card, the driver, the cores and the versions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, count
from pathlib import Path
from typing import Any

import tomllib

HERE = Path(__file__).resolve().parent
PLAN = HERE / "evening.toml"
PACKAGES = ("torch", "triton", "megatron-core", "transformer-engine", "apex", "numpy", "polars")
GRACE = 1.5
"""A benchmark is ended when it takes so many times its seconds."""


@dataclass(frozen=True)
class Benchmark:
    """One entry of the plan.

    Args:
        name: unique; of its log and its folder.
        command: what follows `python`; `{out}` is a folder of its own, which is not there yet.
        seconds: it takes on one H200.
        gpus: how many it needs.
        environment: variables of it.
    """

    name: str
    command: str
    seconds: float
    gpus: int = 1
    environment: dict[str, str] = field(default_factory=dict)


def plan(file: Path) -> list[Benchmark]:
    """The benchmarks of a plan, in their order."""
    return [Benchmark(**entry) for entry in tomllib.loads(file.read_text())["benchmark"]]


def machine() -> dict[str, Any]:
    """What the results depend on."""
    query = "--query-gpu=name,driver_version,memory.total"
    try:
        found = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        cards = found.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        cards = []
    return {
        "cards": cards,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {name: told for name in PACKAGES if (told := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def run(one: Benchmark, out: Path, limit: float) -> dict[str, Any]:
    """Run one to its end, or until `limit` seconds are over."""
    # What was ended has left its folder.
    folders = (out / name for name in chain([one.name], (f"{one.name}-{n}" for n in count(2))))
    folder = next(folder for folder in folders if not folder.exists())
    words = [word.format(out=folder) for word in shlex.split(one.command)]
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **one.environment,
    }  # fmt: skip
    began, at = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    with (out / f"{one.name}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *words], stdout=log, stderr=subprocess.STDOUT,
            cwd=HERE.parent, env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            status = f"status {process.wait(limit)}".replace("status 0", "done")
        except subprocess.TimeoutExpired:
            status = "stopped: no time left"
        finally:
            # Trainings that it started must not disturb the next one.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seconds = round(time.monotonic() - began, 1)
    return {"command": one.command, "began": at, "seconds": seconds, "ended": status}


def main() -> None:
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for logs and files")
    parser.add_argument("--plan", type=Path, default=PLAN, help="[default: %(default)s]")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for everything")
    options = parser.parse_args()
    try:
        asked = plan(options.plan)
    except (OSError, TypeError, KeyError, ValueError) as error:
        parser.error(f"--plan {options.plan}: no plan as benchmarks/evening.toml is ({error})")
    if options.out.exists() and not options.out.is_dir():
        parser.error(f"{options.out}: is no folder; name one, which may be new")
    options.out.mkdir(parents=True, exist_ok=True)
    if unknown := {*(options.only or ())} - {one.name for one in asked}:
        parser.error(f"--only {min(unknown)}: {options.plan} has no benchmark of this name")
    file = options.out / "evening.json"
    results = json.loads(file.read_text()) if file.exists() else {"machine": machine()}
    cards = len(results["machine"]["cards"])
    for one in asked:
        if one.gpus > cards or (options.only and one.name not in options.only):
            continue
        if results.get(one.name, {}).get("ended") == "done":
            continue
        left = options.seconds - (time.monotonic() - began)
        if one.seconds > left:
            print(f"{one.name}: not begun, it takes {one.seconds:.0f} s and {left:.0f} s are left")
            continue
        results[one.name] = told = run(one, options.out, min(left, GRACE * one.seconds + 20))
        file.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{one.name}: {told['ended']}, {told['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
