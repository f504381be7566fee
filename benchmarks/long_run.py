# SPDX-License-Identifier: Apache-2.0
"""A long training on the CPU with all that watches a run, faults, and launches that are ended.

    python benchmarks/long_run.py OUT            2,000 iterations; 20 to 60 minutes on 2 cores
    python benchmarks/long_run.py OUT --quick    60 iterations, below 5 minutes

Two ranks of `pretrain_gpt.py` over gloo under torchrun: monitor, 50 windows by plan, windows on
request (file, signal, slow iteration), checkpoints, evaluation. The dataset of a rank sleeps, a
module of a rank sleeps, a rank leaks memory. Two launches are ended, by SIGKILL and by SIGTERM, and
the next one goes on from the last checkpoint. Then the same launches run without profiling and
without faults. What is asked: is resident memory flat, is a process or a file left behind, can
every window be read, is every fault named, are losses and gradient norms the same to the bit. A
table at the end, and OUT/long_run.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import long_run_answers as answers
from long_run_launch import Launch, of_profiling, of_training
from long_run_plan import RANKS, Plan, long, quick


class LongRun:
    """All launches, one after the other.

    Args:
        out: new folder.
        plan: what happens when.
    """

    def __init__(self, out: Path, plan: Plan) -> None:
        self._out, self._plan = out, plan
        self._began = time.monotonic()
        self._now: Launch | None = None
        self.launches: list[Launch] = []
        self.alone: list[Launch] = []
        self.seconds: dict[str, float] = {}
        out.mkdir(parents=True)
        plan.write(out / "plan.json")

    def tell(self, line: str) -> None:
        """With the time since the begin."""
        print(f"{(time.monotonic() - self._began) / 60:5.1f} min  {line}", flush=True)

    def profiled(self) -> None:
        """The training with everything on, as often as it is ended."""
        flags = [
            *of_training(self._plan, self._out / "checkpoints"),
            *of_profiling(self._plan, self._out / "traces"),
        ]
        acts: dict[int, Callable[[Launch], None]] = dict.fromkeys(self._plan.asks, self._ask)
        acts |= dict.fromkeys(self._plan.signals, _signal)
        for number, until in enumerate([*self._plan.kills, None], start=1):
            status = self._launch(f"launch-{number}", flags, until, acts, with_faults=True)
            if until is None and status:
                self.tell(f"the last launch ended with status {status}: see its train.log")

    def unprofiled(self) -> None:
        """The same launches, alone."""
        flags = of_training(self._plan, self._out / "checkpoints-unprofiled")
        for number, until in enumerate([*self._plan.kills, None], start=1):
            self._launch(f"unprofiled-{number}", flags, until, {}, with_faults=False)

    def _launch(
        self,
        name: str,
        flags: list[str],
        until: tuple[int, str] | None,
        acts: dict[int, Callable[[Launch], None]],
        *,
        with_faults: bool,
    ) -> int:
        self.tell(f"{name} begins")
        began = time.monotonic()
        plan = self._out / "plan.json" if with_faults else None
        self._now = Launch(self._out / name, flags, plan, self.tell)
        (self.launches if with_faults else self.alone).append(self._now)
        status = self._now.watch(until, acts)
        self.seconds[name] = round(time.monotonic() - began, 1)
        self.tell(
            f"{name} ended in iteration {self._now.iteration()} with status {status}; its last "
            f"process {self._now.seconds_to_end:.0f} s later"
            + (f"; left: {self._now.left}" if self._now.left else "")
        )
        return status

    def _ask(self, launch: Launch) -> None:
        """A window, as a user asks for one."""
        ended = answers.torch_trace(
            "trigger", str(launch.runs[-1]), "--iterations", "2", "--wait", "0"
        )
        self.tell(f"trigger: {(ended.stdout + ended.stderr).strip()}")

    def stop(self) -> None:
        """Nothing may go on."""
        if self._now is not None:
            self._now.kill()


def _signal(launch: Launch) -> None:
    pid = launch.pid(RANKS - 1)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)


def result(run: LongRun, plan: Plan, out: Path, shared: set[str]) -> dict[str, Any]:
    """All answers."""
    runs = [one for launch in run.launches for one in launch.runs]
    recovered = answers.torch_trace("recover", str(out / "traces"))
    seen = answers.windows(runs, out / "analyses", run.tell)
    logs = [launch.log for launch in run.launches]
    return {
        "seconds": run.seconds,
        "windows": seen,
        "faults": answers.named(plan, logs, seen),
        "other_slow_rank_lines": answers.other_lines(plan, logs),
        "losses": answers.losses(
            [launch.folder for launch in run.launches], [launch.folder for launch in run.alone]
        ),
        "memory": [
            *(row for one in run.launches for row in answers.memory(one.folder, plan)),
            *(row for one in run.alone for row in answers.memory(one.folder, None)),
        ],
        "left": {
            "processes": [line for one in run.launches for line in one.left],
            "shared_memory": sorted({path.name for path in Path("/dev/shm").iterdir()} - shared),
            "recover": (recovered.stdout + recovered.stderr).strip().splitlines(),
            **answers.files_left(run.launches, run.alone, runs),
        },
    }  # fmt: skip


_LEFT = (
    "processes",
    "shared_memory",
    "temporary",
    "temporary_without_profiling",
    "unfinished",
)


def table(found: dict[str, Any]) -> str:
    """For a person."""
    losses, left = found["losses"], found["left"]
    unread = [one["window"] for one in found["windows"] if one["status"]]
    lines = [
        f"windows      {len(found['windows'])}, not readable: {', '.join(unread) or 'none'}",
        f"losses       {losses['compared']} iterations, other than without profiling: "
        f"{len(losses['other']) or 'none'}",
    ]
    for one in found["faults"]:
        first, last = one["iterations"]
        told = json.dumps(one["lines"][0]) if one["lines"] else "NOT NAMED"
        lines.append(f"fault        {one['kind']}, rank {one['rank']}, {first}-{last}: {told}")
    lines.append(f"other lines  {len(found['other_slow_rank_lines'])} about slow ranks")
    for one in found["memory"]:
        rise = one.get("slope")
        said = "too few samples" if rise is None else (
            f"{rise['first_mb']:.0f} -> {rise['last_mb']:.0f} MB, {rise['kb']:+.2f} ± "
            f"{rise['error_kb']:.2f} kB an iteration; threads {one['threads']}, files "
            f"{one['files']}, children {one['children']}"
        )  # fmt: skip
        lines.append(f"memory       {one['launch']}, rank {one['rank']}: {said}")
        if heap := one.get("heap"):
            lines.append(
                f"in use       {one['launch']}, rank {one['rank']}: {heap['first_mb']:.1f} -> "
                f"{heap['last_mb']:.1f} MB, {heap['kb']:+.2f} ± {heap['error_kb']:.2f} kB"
            )
    lines += [f"left         {what}: {', '.join(left[what]) or 'none'}" for what in _LEFT]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--iterations", type=int, default=2000, help="[default: %(default)s]")
    parser.add_argument("--windows", type=int, default=50, help="by plan [default: %(default)s]")
    parser.add_argument("--quick", action="store_true", help="60 iterations, one relaunch")
    options = parser.parse_args()
    if options.out.exists():
        parser.error(f"{options.out}: exists; name a folder that does not")
    if options.iterations < 10 * options.windows or options.windows < 1:
        parser.error(f"--windows {options.windows}: must be 1 to a tenth of --iterations")
    out = options.out.resolve()
    plan = quick() if options.quick else long(options.iterations, options.windows)
    shared = {path.name for path in Path("/dev/shm").iterdir()}
    run = LongRun(out, plan)
    try:
        run.profiled()
        run.unprofiled()
        found = result(run, plan, out, shared)
    finally:
        run.stop()
    (out / "long_run.json").write_text(json.dumps(found, indent=1))
    print(table(found))


if __name__ == "__main__":
    main()
