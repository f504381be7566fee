# SPDX-License-Identifier: Apache-2.0
"""All that a snapshot knows of one device, put together once for every question about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatron.torch_trace.allocator.allocations import Allocations, allocations_of, of_device
from megatron.torch_trace.allocator.categories import categories_of
from megatron.torch_trace.allocator.owners import Owner, owners_beside, with_owners
from megatron.torch_trace.allocator.snapshot import History, Snapshot
from megatron.torch_trace.allocator.usage import Usage, usage_of
from megatron.torch_trace.format.integer_arrays import Ints


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One device of one process.

    Args:
        snapshot: of the process.
        rank: None if neither the file nor its name says.
        device: index.
        history: of this device alone.
        allocations: with their lifetimes.
        categories: of the allocations, as positions in `CATEGORIES`.
        usage: over time.
    """

    snapshot: Snapshot
    rank: int | None
    device: int
    history: History
    allocations: Allocations
    categories: Ints
    usage: Usage


def device_memory(
    snapshot: Snapshot, rank: int | None, device: int, owners: Sequence[Owner] | None = None
) -> DeviceMemory:
    """Of one device.

    Args:
        snapshot: of the process.
        rank: None if neither the file nor its name says.
        device: index.
        owners: whose memory it is; what stands beside the snapshot's file if None.
    """
    history = of_device(snapshot.history, device)
    allocations = allocations_of(snapshot, history, device)
    usage = usage_of(snapshot, history, allocations, device)
    allocations, categories = with_owners(
        allocations,
        categories_of(allocations, snapshot.stacks, len(history)),
        snapshot.stacks,
        owners_beside(snapshot.path) if owners is None else owners,
        device=device,
        entries=len(history),
    )
    return DeviceMemory(snapshot, rank, device, history, allocations, categories, usage)
