# SPDX-License-Identifier: Apache-2.0
"""What is in use in a snapshot that was just taken: by category, by module, by holder."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from megatron.torch_profile.memory.history import Contents
from megatron.torch_trace.allocator.device_memory import device_memory
from megatron.torch_trace.allocator.fragmentation import Fragmentation, fragmentation_of
from megatron.torch_trace.allocator.held import held_by
from megatron.torch_trace.allocator.holders import Holder
from megatron.torch_trace.allocator.purpose.categories import Category
from megatron.torch_trace.allocator.purpose.owners import Owners
from megatron.torch_trace.allocator.snapshot_file import snapshot_of

OTHERS = "all other tensors"
"""Holds what has neither an owner nor a recorded stack."""


@dataclass(frozen=True, slots=True)
class LiveBytes:
    """Memory of one GPU at the moment of a snapshot.

    Args:
        in_use: bytes that tensors hold.
        reserved: bytes that the allocator has from CUDA.
        fragmentation: of the free pieces.
        categories: bytes; those that hold something.
        modules: bytes by the code that allocated them, or by their owner, the largest first.
        holders: the largest first.
        has_stacks: whether a history is kept, which tells who allocated.
        expandable: whether segments grow.
    """

    in_use: int
    reserved: int
    fragmentation: Fragmentation
    categories: dict[Category, int]
    modules: dict[str, int]
    holders: tuple[Holder, ...]
    has_stacks: bool
    expandable: bool

    @property
    def named(self) -> list[tuple[str, int]]:
        """Holders in words, the largest first."""
        totals: dict[str, int] = defaultdict(int)
        for one in self.holders:
            # What a model's parameters are is said once, not for each of them.
            of_stack = one.stack and ".py:" in one.stack[0]
            words = f"{one.category.words} of {one.module}" if of_stack else one.category.words
            totals[OTHERS if one.category is Category.UNKNOWN else words] += one.size
        return sorted(totals.items(), key=lambda item: -item[1])


def live_bytes(contents: Contents, owners: Owners, device: int) -> LiveBytes:
    """What a snapshot says of one GPU.

    Args:
        contents: of the snapshot.
        owners: at the same moment.
        device: index.
    """
    snapshot = snapshot_of(contents, Path())
    memory = device_memory(snapshot, None, device, owners)
    history, allocations = memory.history, memory.allocations
    rows = allocations.alive(len(history) - 1)
    held = held_by(allocations, memory.categories, snapshot.stacks, rows)
    modules: dict[str, int] = defaultdict(int)
    for one in held.holders:
        modules[one.module or OTHERS] += one.size
    return LiveBytes(
        in_use=held.size,
        reserved=int(snapshot.segments.size[snapshot.segments.device == device].sum()),
        fragmentation=fragmentation_of(snapshot, device),
        categories={category: size for category, size in held.categories.items() if size},
        modules=dict(sorted(modules.items(), key=lambda item: -item[1])),
        holders=held.holders,
        has_stacks=bool(len(history)),
        expandable=bool(snapshot.settings.get("expandable_segments")),
    )
