# SPDX-License-Identifier: Apache-2.0
"""Who is where: every rank's host, process, device and parallel coordinates, known to all ranks.

Three collectives over the default group, once, before training, on every rank: nothing here
depends on which ranks are profiled.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from megatron.torch_profile.plan.ranks import DIMENSIONS, Layout

T = TypeVar("T")
CPU = "cpu"
"""Name of the device of a rank without a GPU."""

_RANK_OF = {
    "tp": "get_tensor_model_parallel_rank",
    "pp": "get_pipeline_model_parallel_rank",
    "dp": "get_data_parallel_rank",
    "cp": "get_context_parallel_rank",
    "ep": "get_expert_model_parallel_rank",
}
_SIZE_OF = {
    "tp": "get_tensor_model_parallel_world_size",
    "pp": "get_pipeline_model_parallel_world_size",
    "dp": "get_data_parallel_world_size",
    "cp": "get_context_parallel_world_size",
    "ep": "get_expert_model_parallel_world_size",
}


@dataclass(frozen=True, slots=True)
class Member:
    """One rank: satisfies `ranks.Located`."""

    rank: int
    host: str
    pid: int
    local_rank: int
    device: str
    coordinates: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The rank's entry in run.json."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Topology:
    """All ranks of the job, as seen by one of them.

    Args:
        rank: the rank of this process.
        layout: sizes of the parallel dimensions.
        members: every rank, ascending.
    """

    rank: int
    layout: Layout
    members: Sequence[Member]

    @property
    def me(self) -> Member:
        """This process."""
        return self.members[self.rank]


def discover(
    coordinates: Mapping[str, int] | None = None, sizes: Mapping[str, int] | None = None
) -> Topology:
    """Learn the topology from Megatron's process groups. Collective: call it on every rank.

    Args:
        coordinates: of this rank, where the training loop itself tells them.
        sizes: of the parallel dimensions then.
    """
    import torch

    rank, world_size = 0, 1
    if distributed():
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    me = Member(
        rank=rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else CPU,
        coordinates=coordinates or _ask_megatron(_RANK_OF),
    )
    return Topology(rank, Layout(world_size, sizes or _ask_megatron(_SIZE_OF)), gather(me))


def layout_from_arguments(args: Any) -> Layout:
    """The layout that parsed arguments promise, before any process group exists.

    Sizes that do not divide the world are left out: Megatron has a message for that.
    """
    world_size = int(os.environ.get("WORLD_SIZE", getattr(args, "world_size", None) or 1))
    sizes = {
        "tp": getattr(args, "tensor_model_parallel_size", None) or 1,
        "pp": getattr(args, "pipeline_model_parallel_size", None) or 1,
        "cp": getattr(args, "context_parallel_size", None) or 1,
    }
    model = sizes["tp"] * sizes["pp"] * sizes["cp"]
    if world_size % model:
        return Layout(world_size, {})
    sizes["dp"] = world_size // model
    sizes["ep"] = getattr(args, "expert_model_parallel_size", None) or 1
    return Layout(world_size, sizes)


def gather(value: T) -> list[T]:
    """Every rank's value, by rank, on every rank. Collective."""
    if not distributed():
        return [value]
    import torch

    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def from_rank_0(value: T) -> T:
    """Rank 0's value on every rank. Collective."""
    if not distributed():
        return value
    import torch

    values: list[Any] = [value]
    torch.distributed.broadcast_object_list(values, src=0)
    result: T = values[0]
    return result


def distributed() -> bool:
    """Whether there are ranks to talk to."""
    import torch

    # Megatron's --fake-process-group has no peers: its collectives return nothing of theirs.
    return initialised() and torch.distributed.get_backend() != "fake"


def initialised() -> bool:
    """Whether the process groups exist."""
    import torch

    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _ask_megatron(names: Mapping[str, str]) -> dict[str, int]:
    # Whoever trains has it imported; importing Megatron to ask it would only cost.
    parallel_state = sys.modules.get("megatron.core.parallel_state")
    answers: dict[str, int] = {}
    for dimension in DIMENSIONS:
        # Old versions lack some, and all of them assert that the groups exist.
        try:
            answers[dimension] = int(getattr(parallel_state, names[dimension])())
        except (AttributeError, AssertionError, TypeError):
            continue
    return answers
