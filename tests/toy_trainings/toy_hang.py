# SPDX-License-Identifier: Apache-2.0
"""A training of ten lines on gloo ranks, the last of which hangs: toy_hang.py FOLDER HOW.

HOW is `fetch` (the last rank's data come late, then training goes on), `lock` (the same, in C code
that keeps Python's lock), `stop` (SIGSTOP), or `skip` (it calls another collective than the
others).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch

from megatron.torch_profile.monitor.hangs.hang_watch import HangWatch
from megatron.torch_profile.monitor.heartbeat import Heartbeat
from megatron.torch_profile.plan.topology import discover

ITERATIONS, HANGS_AT, SECONDS = 6, 4, 2.0
folder, how = Path(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo")
rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
model = torch.nn.Sequential(torch.nn.Linear(16, 16))
heartbeat = Heartbeat()
watch = HangWatch(SECONDS, folder, discover(), heartbeat, [model])
watch.start()


class SlowLoader:
    """Whose batch of one iteration takes its time on one rank."""

    def __iter__(self) -> SlowLoader:
        return self

    def __next__(self) -> torch.Tensor:
        if rank == ranks - 1 and heartbeat.iteration == HANGS_AT:
            hang()
        return torch.ones(8, 16)


def hang() -> None:
    if how == "fetch":
        time.sleep(4 * SECONDS)
    elif how == "lock":
        ctypes.PyDLL(None).sleep(int(4 * SECONDS))
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
