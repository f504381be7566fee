# SPDX-License-Identifier: Apache-2.0
"""A process of a training in which one rank makes all others wait (hangs.py starts it).

With arguments it is `pretrain_gpt.py`, without any a process group and modules of torch's own.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))
CASE = "HANGS_CASE"
SECONDS, LAYERS, MICRO_BATCHES, HANGS_AT = 3.0, 4, 4, 5
HOW = ("stop", "skip", "size", "wait")


@dataclass(frozen=True)
class Case:
    """What one rank does in one place.

    Args:
        how: of `HOW`.
        rank: at fault.
        layer: in whose forward.
        micro_batch: counted from 0.
    """

    how: str
    rank: int
    layer: int
    micro_batch: int


def do(case: Case, reduce: Any, tensor: Any) -> None:
    """On the rank at fault, where it would have reduced a tensor."""
    if case.how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif case.how == "wait":
        time.sleep(1000)
    elif case.how == "size":
        reduce(tensor.flatten()[: tensor.numel() // 2].clone())
    if case.how != "size" and case.how != "skip":
        reduce(tensor)


def train_modules() -> None:
    """In a process: modules of torch's own, of which each reduces over the tensor's group."""
    import torch
    from torch import distributed

    from megatron.torch_profile.monitor.hangs.hang_watch import HangWatch
    from megatron.torch_profile.monitor.heartbeat import Heartbeat
    from megatron.torch_profile.plan.topology import discover

    case, rank = Case(**json.loads(os.environ[CASE])), int(os.environ["RANK"])
    folder = Path(os.environ["HANGS_FOLDER"])
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    (folder / f"ready-{rank}").touch()
    while not (folder / "go").exists():
        time.sleep(0.05)
    if gpu:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if gpu else "gloo")
    ranks = [*range(distributed.get_world_size())]
    tensor_group = distributed.new_group(ranks, group_desc="TENSOR_MODEL_PARALLEL_GROUP")
    data_group = distributed.new_group(ranks, group_desc="DATA_PARALLEL_GROUP_WITH_CP")
    heartbeat = Heartbeat()
    now = {"micro_batch": 0}

    def reduce(tensor: Any) -> None:
        distributed.all_reduce(tensor, group=tensor_group)

    class Layer(torch.nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number
            self.mlp = torch.nn.Linear(256, 256, device=device)

        def forward(self, tensor: Any) -> Any:
            tensor = self.mlp(tensor)
            here = Case(case.how, rank, self.number, now["micro_batch"])
            if heartbeat.iteration == HANGS_AT and here == case:
                do(case, reduce, tensor.detach())
            else:
                reduce(tensor.detach())
            return tensor

    model = torch.nn.ModuleDict({"layers": torch.nn.Sequential(*map(Layer, range(LAYERS)))})
    HangWatch(SECONDS, folder, discover(), heartbeat, [model]).start()
    for iteration in range(1, HANGS_AT + 3):
        heartbeat.begin_step(iteration)
        for micro_batch in range(MICRO_BATCHES):
            now["micro_batch"] = micro_batch
            loss = model["layers"](torch.ones(64, 256, device=device)).square().mean()
            loss.backward()
            loss.item()
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad, group=data_group)


def train_megatron() -> None:
    """In a process: `pretrain_gpt.py`, of which one rank does not do what it should."""
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.tensor_parallel import mappings
    from megatron.core.transformer.mlp import MLP

    from megatron.torch_profile.followers import followers

    case, rank = Case(**json.loads(os.environ[CASE])), int(os.environ["RANK"])
    reduce, forward, step = mappings._reduce, MLP.forward, schedules.forward_step
    now = {"mlp": -1, "micro_batch": -1, "iteration": 0}
    done: list[int] = []

    def counted_step(*args: Any, **kwargs: Any) -> Any:
        iteration = followers.heartbeat.iteration if followers.heartbeat else 0
        now["micro_batch"] = now["micro_batch"] + 1 if iteration == now["iteration"] else 0
        now["iteration"], now["mlp"] = iteration, -1
        return step(*args, **kwargs)

    def counted_forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        now["mlp"] += 1
        return forward(module, *args, **kwargs)

    def faulty(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        here = now["iteration"] == HANGS_AT and now["micro_batch"] == case.micro_batch
        if not here or done or now["mlp"] < 0:
            return reduce(tensor, *args, **kwargs)
        done.append(1)
        print(f"rank {rank}: {case.how}", flush=True)
        do(case, lambda one: reduce(one, *args, **kwargs), tensor)
        return tensor

    if rank == case.rank:
        schedules.forward_step, MLP.forward, mappings._reduce = (
            counted_step,
            counted_forward,
            faulty,
        )
    sys.argv = [str(REPOSITORY / "pretrain_gpt.py"), *sys.argv[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    train_megatron() if len(sys.argv) > 1 else train_modules()
