# SPDX-License-Identifier: Apache-2.0
"""A training of ten lines on gloo ranks, the last of which hangs: toy_hang.py FOLDER HOW.

HOW is `fetch` (the last rank's data come when the test writes to the pipe FOLDER/data, and training
goes on), `lock` (the same, in C code that keeps Python's lock), `stop` (SIGSTOP), or `skip` (it
calls another collective than the others).

A busy machine keeps a rank from going on, too. So time passes for a rank's watch only where the
rank hangs: in iteration 4, once it has been seen there for a second.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import torch

from megatron.torch_profile.monitor.hangs import hang_watch
from megatron.torch_profile.monitor.heartbeat import Heartbeat
from megatron.torch_profile.plan.topology import discover

ITERATIONS, HANGS_AT, SECONDS, LOCK_SECONDS = 6, 4, 600.0, 2.0
folder, how = Path(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo")
rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
model = torch.nn.Sequential(torch.nn.Linear(16, 16))
heartbeat = Heartbeat()
last = rank == ranks - 1
there = "barrier" if how == "skip" and last else "hang" if last else "all_reduce"
hang_watch._LONGEST_LOOK = 0.2


class Watch(hang_watch.HangWatch):
    _seen_there: int | None = None

    def look(self, now_ns: int) -> None:
        if not hangs_there():
            self._seen_there = None
            return super().look(heartbeat.since_ns)
        self._seen_there = self._seen_there or now_ns
        hangs = now_ns - self._seen_there > 1_000_000_000
        return super().look(heartbeat.since_ns + int(SECONDS * 1e9) * hangs)


def hangs_there() -> bool:
    """Whether the thread that trains is where this rank hangs, and the last rank hangs."""
    if heartbeat.iteration != HANGS_AT or not (folder / "hangs-now").exists():
        return False
    frame, names = sys._current_frames().get(heartbeat.thread), set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return there in names


watch = Watch(SECONDS, folder, discover(), heartbeat, [model])
watch.start()


class SlowLoader:
    """Whose batch of one iteration takes its time on one rank."""

    def __iter__(self) -> SlowLoader:
        return self

    def __next__(self) -> torch.Tensor:
        if last and heartbeat.iteration == HANGS_AT:
            pipe = os.open(folder / "data", os.O_RDWR)
            (folder / "hangs-now").touch()
            if how == "lock":
                watch._locked._limit = LOCK_SECONDS
                watch._locked.renew()
            hang(pipe)
        return torch.ones(8, 16)


def hang(pipe: int) -> None:
    if how == "fetch":
        os.read(pipe, 1)
    elif how == "lock":
        ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1)
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "skip":
        torch.distributed.barrier()


def train() -> None:
    for iteration, batch in zip(range(1, ITERATIONS + 1), SlowLoader(), strict=False):
        loss = model(batch).square().mean()
        loss.backward()
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
        print(f"rank {rank} step {iteration} pid {os.getpid()}", flush=True)
        heartbeat.begin_step(iteration + 1)


heartbeat.begin_step(1)
train()
watch.stop()
torch.distributed.destroy_process_group()
