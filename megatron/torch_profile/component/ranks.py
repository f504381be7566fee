# SPDX-License-Identifier: Apache-2.0
"""The ranks that measure together: one, or those that torchrun has started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist

Kind = TypeVar("Kind")


class Ranks:
    """This rank among the others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    @classmethod
    @contextmanager
    def of_environment(cls, device: str) -> Iterator[Ranks]:
        """As torchrun tells; process groups are there while it is open, if there are others."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        rank = int(os.environ.get("RANK", "0"))
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        made = size > 1 and not dist.is_initialized()
        if made:
            dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
        try:
            yield cls(rank, size)
        finally:
            if made and dist.is_initialized():
                dist.destroy_process_group()

    def gathered(self, mine: Kind) -> list[Kind]:
        """What all ranks have, by rank."""
        if self.size == 1:
            return [mine]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, mine)
        return found

    def of_first(self, make: Any) -> Any:
        """What rank 0 makes, on all ranks."""
        if self.size == 1:
            return make()
        made = [make() if self.rank == 0 else None]
        dist.broadcast_object_list(made)
        return made[0]

    def meet(self) -> None:
        """Wait for the other ranks."""
        if self.size > 1:
            dist.barrier()
