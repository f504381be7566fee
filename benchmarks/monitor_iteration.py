# SPDX-License-Identifier: Apache-2.0
"""Microseconds that the monitor takes from the thread that trains, in one iteration.

    python benchmarks/monitor_iteration.py          # no Megatron training: only what it calls

An iteration of 4 micro-batches and 3 layers calls Megatron's timers 24 times, its data iterator 4
times, and a process group 72 times (here one that sends nothing). With a GPU, events are recorded.
It is processor time, the best of several rounds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from megatron.core.rerun_state_machine import RerunDataIterator
from megatron.core.timers import Timers
from torch.testing._internal.distributed.fake_pg import FakeStore

from megatron.torch_profile.monitor.heartbeat import Heartbeat
from megatron.torch_profile.monitor.iterations.marks import GpuMarks, HostMarks
from megatron.torch_profile.monitor.iterations.phase_clock import PhaseClock
from megatron.torch_profile.monitor.iterations.sampling import EVERY
from megatron.torch_profile.monitor.iterations.seams import seams

TIMERS = ("forward-compute", "backward-compute", "batch-generator") * 8
MICRO_BATCHES, COLLECTIVES, ROUNDS = 4, 72, 40


class Iteration:
    """What a training calls."""

    def __init__(self) -> None:
        self.timers: Any = Timers(0, "max")
        self.data = RerunDataIterator(iter(lambda: 1, 0))
        self.tensor = torch.ones(1)

    def run(self) -> None:
        for name in TIMERS:
            self.timers(name, log_level=2).start()
            self.timers(name).stop()
        for _ in range(MICRO_BATCHES):
            next(self.data)
        for _ in range(COLLECTIVES):
            torch.distributed.all_reduce(self.tensor)


def microseconds(iteration: Iteration, heartbeat: Heartbeat | None, numbers: list[int]) -> float:
    """Of the fastest of some iterations."""
    best = float("inf")
    for number in numbers:
        began = time.thread_time_ns()
        if heartbeat is not None:
            heartbeat.begin_step(number)
        iteration.run()
        best = min(best, time.thread_time_ns() - began)
        if heartbeat is not None and heartbeat.clock is not None:
            heartbeat.clock.read()
    return best / 1000


def main() -> None:
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    iteration = Iteration()
    clock = PhaseClock(GpuMarks() if torch.cuda.is_available() else HostMarks())
    heartbeat = Heartbeat(clock)
    with seams(clock):
        heartbeat.begin_step(1)
        for number in range(2, 3 * EVERY):  # what is measured in parts while a process learns
            heartbeat.begin_step(number)
            clock.read()
        plain = [n for n in range(3 * EVERY, 200 * EVERY) if 0 < n % EVERY < EVERY - 1]
        alone, few, parts = [], [], []
        for round_ in range(ROUNDS):
            mine = plain[round_ * 30 : round_ * 30 + 30]
            alone.append(microseconds(iteration, None, mine))
            few.append(microseconds(iteration, heartbeat, mine))
            parts.append(microseconds(iteration, heartbeat, [EVERY * (1000 + round_)] * 2))
    print(f"the calls alone              {min(alone):8.1f} us")
    print(f"with the monitor             {min(few) - min(alone):+8.1f} us")
    print(f"in an iteration in parts     {min(parts) - min(alone):+8.1f} us")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
