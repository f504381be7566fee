# SPDX-License-Identifier: Apache-2.0
"""A training of ten lines on gloo ranks that takes requests: toy_requests.py FOLDER [TRIGGER]...

Prints `rank R step N LOSS pid P`. Without TRIGGER there is no recorder. From iteration 40 on each
rank waits in every iteration, for a while at least, until it has learned of a request: so the
request is in time, and no rank learns of it too late, on any machine.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.monitor import agreement, lifetime
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.schedule import Schedule, Span
from megatron.torch_profile.plan.topology import discover
from megatron.torch_profile.record.recorder import Recorder

# torch's profiler looks for it, and its import takes longer than the training.
torch._lazy_modules.discard("_inductor")

ITERATIONS, WAITS_FROM, SECONDS = 300, 40, 20.0
folder, triggers = Path(sys.argv[1]), sys.argv[2:]
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(rank)
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(4)])
steps = None
agreement.LEAD_SECONDS, lifetime.LOOK_SECONDS = 1.0, 0.2
if triggers:
    config = TorchProfileConfig(enabled=True, trigger=triggers, skip_first=ITERATIONS - 2)
    plan = CapturePlan(config, discover(), (0,), Schedule(config, Span(1, ITERATIONS)), folder)
    steps = lifetime.followed(Recorder(plan, [model], {"rank": rank}), plan)


def wait_for_a_request() -> None:
    end = time.monotonic() + SECONDS
    while steps and not steps._learned and time.monotonic() < end:
        time.sleep(0.01)


for iteration in range(1, ITERATIONS + 1):
    if steps:
        steps.begin_step(iteration)
    loss = model(torch.ones(8, 16)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter.grad)
    # Not torch.optim, which imports torch.compile.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    model.zero_grad()
    print(f"rank {rank} step {iteration} {loss.item().hex()} pid {os.getpid()}", flush=True)
    time.sleep(0.03)
    if iteration >= WAITS_FROM:
        wait_for_a_request()
if steps:
    steps.close()
torch.distributed.destroy_process_group()
