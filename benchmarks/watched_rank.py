# SPDX-License-Identifier: Apache-2.0
"""A process of `pretrain_gpt.py` that sleeps and switches its monitor by schedule (watch.py)."""

from __future__ import annotations

import os
import runpy
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
OUT, RANKS, TIMES = "WATCH_OUT", "WATCH_RANKS", "WATCH_TIMES"
SETTLE, EPISODE, SLEEPS, EPISODES = 40, 12, 3, 20
PARTS = ("forward", "backward", "optimizer")
SIZES = (0.3, 0.5, 0.75, 1.0)
"""Of an iteration; --times multiplies them."""
SLOW_AT, SLOW_LONG, SLOW_TIMES = SETTLE + EPISODE * EPISODES + 12, 3, 12
BLOCK, SWITCH, LATEST = 32, 2, 100_000
FIRST_BLOCK = -(-(SLOW_AT + 12) // BLOCK) * BLOCK + BLOCK // 2
"""The one iteration in 32 that is measured in parts lies in the middle of a block."""


def sleep_of(iteration: int, ranks: int) -> tuple[int, str, float] | None:
    """Rank, part, and share of an iteration; the last iterations of an episode are quiet."""
    episode, within = divmod(iteration - SETTLE - 1, EPISODE)
    if SLOW_AT <= iteration < SLOW_AT + SLOW_LONG:
        return ranks - 1, "forward", SLOW_TIMES
    if not 0 <= episode < EPISODES or within >= SLEEPS:
        return None
    return episode * 3 % ranks, PARTS[episode % 3], SIZES[episode // 3 % 4]


def is_on(iteration: int) -> bool:
    """Whether the monitor is on: in the order on, off, off, on."""
    block = (iteration - FIRST_BLOCK) // BLOCK
    return block < 0 or block % 4 in (0, 3)


class FaultyRank:
    """In a process of training: what happens in which iteration."""

    def __init__(self) -> None:
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ[RANKS])
        self.iteration = 0
        self.done: set[tuple[int, str]] = set()
        self.begins: list[float] = []
        self.seams: Any = None
        self.clock: Any = None
        self.on = True
        self.usual = self.begin_s = 0.0
        self.lines: list[str] = []

    def at(self, part: str) -> None:
        """Training is in a part of the iteration: for the first time in this one."""
        if (self.iteration, part) in self.done:
            return
        self.done.add((self.iteration, part))
        sleep = sleep_of(self.iteration, self.ranks)
        if sleep is not None and sleep[:2] == (self.rank, part):
            times = float(os.environ[TIMES]) if sleep[2] < SLOW_TIMES else 1
            time.sleep(sleep[2] * self.usual * times)

    def begins_step(self, heartbeat: Any, iteration: int) -> None:
        """Switch the monitor on or off, block by block."""
        self.iteration = iteration
        if self.clock is None:
            self.clock = heartbeat.clock
        if iteration == FIRST_BLOCK:  # as in a long run, whose budget for slow iterations is spent
            heartbeat._sampling._left = 0
        if is_on(iteration) != self.on:
            self.on = not self.on
            self.clock._now = None
            heartbeat.clock = self.clock if self.on else None
            if not self.on:
                self.clock._watches = False
                self.seams.remove()
        now = time.perf_counter()
        if iteration <= SETTLE:
            self.begins.append(now)
            self.usual = (
                median(b - a for a, b in pairwise(self.begins[-20:])) if iteration > 5 else 0
            )
        self.begin_s = now

    def begun_step(self, heartbeat: Any, iteration: int) -> None:
        """Note when it began, and whether it is measured in parts."""
        current = heartbeat.clock._now if heartbeat.clock is not None else None
        in_parts = current is not None and current.in_parts
        self.lines.append(f"{iteration} {self.begin_s:.7f} {int(in_parts)}\n")
        if self.rank == 0 and iteration % 8 == 0:
            with Path(os.environ[OUT], "begins.txt").open("a") as file:
                file.writelines(self.lines)
            self.lines.clear()

    def install(self) -> None:
        import torch
        from megatron.core.models.gpt import GPTModel
        from megatron.core.optimizer.optimizer import MixedPrecisionOptimizer
        from megatron.core.pipeline_parallel import schedules

        from megatron.torch_profile.monitor.heartbeat import Heartbeat
        from megatron.torch_profile.monitor.iterations.monitor import Monitor
        from megatron.torch_profile.monitor.iterations.seams import Seams

        self._before(GPTModel, "forward", "forward")
        self._before(torch.Tensor, "backward", "backward")
        self._before(torch.autograd, "backward", "backward")
        self._before(schedules, "custom_backward", "backward")
        self._before(MixedPrecisionOptimizer, "step_with_ready_grads", "optimizer")
        begin_step, watch, look, faults = Heartbeat.begin_step, Seams.watch, Monitor.look, self

        def begin(heartbeat: Heartbeat, iteration: int) -> None:
            faults.begins_step(heartbeat, iteration)
            begin_step(heartbeat, iteration)
            faults.begun_step(heartbeat, iteration)

        def watched(seams: Seams, on: bool) -> None:
            faults.seams = seams
            watch(seams, on)

        def looks(monitor: Monitor) -> None:
            if faults.on:
                look(monitor)

        Heartbeat.begin_step, Seams.watch, Monitor.look = begin, watched, looks  # type: ignore[method-assign]

    def _before(self, owner: Any, name: str, part: str) -> None:
        original = getattr(owner, name)

        def late(*args: Any, **kwargs: Any) -> Any:
            self.at(part)
            return original(*args, **kwargs)

        setattr(owner, name, late)


def train() -> None:
    """In a process of training."""
    print("pid", os.getpid(), "rank", os.environ["RANK"], flush=True)
    FaultyRank().install()
    sys.argv = [str(REPOSITORY / "pretrain_gpt.py"), *sys.argv[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    train()
