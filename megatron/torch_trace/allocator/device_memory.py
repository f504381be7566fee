# SPDX-License-Identifier: Apache-2.0
"""All that a snapshot knows of one device, put together once for every question about it."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_trace.allocator.allocations import Allocations, allocations_of, of_device
from megatron.torch_trace.allocator.purpose.categories import categories_of
from megatron.torch_trace.allocator.purpose.owners import Owners, owners_beside, with_owners
from megatron.torch_trace.allocator.purpose.without_stack import told_without_stack
from megatron.torch_trace.allocator.snapshot import History, Snapshot
from megatron.torch_trace.allocator.usage import Usage, usage_of
from megatron.torch_trace.format.integer_arrays import Column


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
        weight_bytes: sizes of the rank's weight matrices, where the training told them.
    """

    snapshot: Snapshot
    rank: int | None
    device: int
    history: History
    allocations: Allocations
    categories: Column
    usage: Usage
    weight_bytes: frozenset[int] = frozenset()


def device_memory(
    snapshot: Snapshot, rank: int | None, device: int, owners: Owners | None = None
) -> DeviceMemory:
    """Of one device.

    Args:
        snapshot: of the process.
        rank: None if neither the file nor its name says.
        device: index.
        owners: whose memory it is; what stands beside the snapshot's file if None.
    """
    owners = owners_beside(snapshot.path) if owners is None else owners
    history = of_device(snapshot.history, device)
    allocations = allocations_of(snapshot, history, device)
    usage = usage_of(snapshot, history, allocations, device)
    allocations, categories = with_owners(
        allocations,
        categories_of(allocations, snapshot.stacks, len(history)),
        snapshot.stacks,
        owners.ranges,
        device=device,
        entries=len(history),
    )
    allocations, categories = told_without_stack(
        allocations,
        categories,
        snapshot.stacks,
        owners.blas_workspace_bytes,
        entries=len(history),
    )
    return DeviceMemory(
        snapshot,
        rank,
        device,
        history,
        allocations,
        categories,
        usage,
        frozenset(owners.weight_bytes),
    )
