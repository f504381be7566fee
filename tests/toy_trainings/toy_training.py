# SPDX-License-Identifier: Apache-2.0
"""A training of ten lines under the real recorder, for faults that need a process to die.

    toy_training.py FOLDER [--iterations N] [--active N] [--seconds-per-step S]
                    [--slow-save S] [--saves-when GATE] [--stays-after N] [--raise-at N]
                    [--own-handler] [--group-timeout S] [--unprofiled] [--flags JSON]
                    [--layers N] [--at N CODE]...

`--saves-when GATE` has each trace wait, unwritten, until the test has put a file with the name of
its window into the folder GATE: `iter-0000003`. `--stays-after N` keeps training where iteration N
has ended, until a signal ends it. So what a test does meanwhile is in time on any machine.

`--at N CODE` runs code of the user's in iteration N, in which `recorder` and `folder` are known;
iteration 0 is before all.

Prints `step N LOSS` for every iteration; under torchrun each iteration all-reduces over gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.export import trace_export
from megatron.torch_profile.export.native_profiler import Result
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.ranks import Layout
from megatron.torch_profile.plan.schedule import Schedule, Span
from megatron.torch_profile.plan.topology import CPU, Member, Topology
from megatron.torch_profile.record.recorder import Recorder

# torch's profiler looks for it, and its import takes longer than the training.
torch._lazy_modules.discard("_inductor")

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--iterations", type=int, default=8)
parser.add_argument("--active", type=int, default=1)
parser.add_argument("--repeat", type=int, default=1)
parser.add_argument("--max-trace-mb", type=int)
parser.add_argument("--seconds-per-step", type=float, default=0.0)
parser.add_argument("--slow-save", type=float, default=0.0)
parser.add_argument("--saves-when", type=Path)
parser.add_argument("--stays-after", type=int)
parser.add_argument("--raise-at", type=int)
parser.add_argument("--own-handler", action="store_true")
parser.add_argument("--group-timeout", type=float, default=600.0)
parser.add_argument("--unprofiled", action="store_true")
parser.add_argument("--flags", type=json.loads, default={})
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--at", nargs=2, action="append", default=[])
options = parser.parse_args()
folder = options.folder


def user(iteration: int) -> None:
    """What the user's own code does in an iteration."""
    for at, code in options.at:
        if int(at) == iteration:
            exec(code, globals())


rank = int(os.environ.get("RANK", "0"))
distributed = "RANK" in os.environ
if distributed:
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=options.group_timeout))


def wait_before_saving(window: str) -> None:
    time.sleep(options.slow_save)
    while options.saves_when and not (options.saves_when / window).exists():
        time.sleep(0.01)


if options.slow_save or options.saves_when:
    save, save_result = trace_export.save, Result.save

    def slowly(profiler: Any, export: trace_export.Export) -> int:
        wait_before_saving(export.folder.name)
        return save(profiler, export)

    def slowly_in_the_thread(result: Result, path: str) -> None:
        wait_before_saving(Path(path).parent.name)
        save_result(result, path)

    trace_export.save, Result.save = slowly, slowly_in_the_thread

stop = False


def handler(number: int, frame: FrameType | None) -> None:
    global stop
    stop = True
    print("own handler called", flush=True)


if options.own_handler:
    signal.signal(signal.SIGTERM, handler)

user(0)
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(options.layers)])
config = TorchProfileConfig(
    enabled=True,
    active=options.active,
    repeat=options.repeat,
    max_trace_mb=options.max_trace_mb,
    **{"record_shapes": True, **options.flags},
)
topology = Topology(0, Layout(1, {}), [Member(0, "node0", os.getpid(), 0, CPU)])
plan = CapturePlan(
    config, topology, (0,), Schedule(config, Span(1, options.iterations)), options.folder
)
recorder = Recorder(plan, [model], {"rank": rank}) if rank == 0 and not options.unprofiled else None

try:
    for iteration in range(1, options.iterations + 1):
        if recorder:
            recorder.begin_step(iteration)
        loss = model(torch.ones(8, 16)).square().mean()
        loss.backward()
        if distributed:
            for parameter in model.parameters():
                torch.distributed.all_reduce(parameter.grad)
        # Not torch.optim, which imports torch.compile.
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        model.zero_grad()
        user(iteration)
        # In one piece, whatever else of this process prints beside, such as the profiler's C++.
        print(f"step {iteration} {loss.item().hex()}\n", end="", flush=True)
        if iteration == options.raise_at:
            raise RuntimeError("the model exploded")
        time.sleep(options.seconds_per_step)
        while iteration == options.stays_after and not stop:
            time.sleep(0.01)
        if stop:
            break
finally:
    if recorder:
        recorder.close()
print("end of training", flush=True)
