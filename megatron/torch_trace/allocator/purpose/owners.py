# SPDX-License-Identifier: Apache-2.0
"""Whose memory an address is, as the recorder wrote it beside a snapshot.

    rank-0.memory_snapshot.pickle       the snapshot
    rank-0.memory_owners.json           {"schema": 1, "ranges": [{"device": 0, "address": 1, ...}],
                                         "weight_bytes": [8388608, ...],
                                         "blas_workspace_bytes": [33554432]}

Parameters, gradients and optimizer state are older than the history of a window, so no call stack
tells what they are; the training itself knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from megatron.torch_trace.allocator.allocations import Allocations
from megatron.torch_trace.allocator.purpose.categories import CATEGORIES, Category
from megatron.torch_trace.allocator.stack_table import UNKNOWN_STACK, StackTable
from megatron.torch_trace.format.integer_arrays import Column

GLOBAL_BUFFER = "Megatron's global memory buffer"
"""The name of an owner: one buffer for what layers need for a moment, as large as a micro-batch."""
_SNAPSHOT, _OWNERS = ".memory_snapshot.pickle", ".memory_owners.json"


class Owner(msgspec.Struct, frozen=True):
    """A range of addresses with one owner.

    Args:
        device: index.
        address: where it begins.
        bytes: how long it is.
        category: the value of a `Category`; one that is not known here is `other`.
        name: what holds it, in words.
    """

    device: int
    address: int
    bytes: int
    category: str
    name: str = ""


class Owners(msgspec.Struct, frozen=True):
    """What the file says.

    Args:
        ranges: with their owners.
        weight_bytes: sizes of the rank's weight matrices, as their gradients have them, each once.
        blas_workspace_bytes: sizes of cuBLAS's workspaces, each once.
    """

    ranges: tuple[Owner, ...] = ()
    weight_bytes: tuple[int, ...] = ()
    blas_workspace_bytes: tuple[int, ...] = ()


def owners_beside(snapshot: Path) -> Owners:
    """The owners of a snapshot; none where no whole file beside it tells them."""
    stem, found, _ = snapshot.name.partition(_SNAPSHOT)
    if found:
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(snapshot.with_name(stem + _OWNERS).read_bytes(), type=Owners)
    return Owners()


def with_owners(
    allocations: Allocations,
    categories: Column,
    stacks: StackTable,
    owners: Sequence[Owner],
    *,
    device: int,
    entries: int,
) -> tuple[Allocations, Column]:
    """What is in use at the end of the history and has an owner is what the owner says.

    Args:
        allocations: of one device.
        categories: of these, by their stacks.
        stacks: of the snapshot; names of owners stand in for stacks that were not recorded.
        owners: at the moment of the snapshot.
        device: index.
        entries: length of the device's history.

    Returns:
        Both, with what the owners say.
    """
    mine = sorted((one for one in owners if one.device == device), key=lambda one: one.address)
    if not mine or not len(allocations):
        return allocations, categories
    start = np.array([one.address for one in mine], dtype=np.int64)
    end = start + np.array([one.bytes for one in mine], dtype=np.int64)
    left = np.flatnonzero(allocations.end >= entries)
    address, size = allocations.address[left], allocations.size[left]
    index = np.searchsorted(start, address, side="right") - 1
    # An allocation belongs to whom its first byte belongs to, or to the first owner inside of it.
    owned = (index >= 0) & (address < end[np.maximum(index, 0)])
    inside = np.minimum(np.searchsorted(start, address, side="left"), len(mine) - 1)
    holds = (start[inside] >= address) & (start[inside] < address + size)
    index = np.where(owned, index, inside)[owned | holds]
    rows = left[owned | holds]
    numbers = np.array([_category(one) for one in mine], dtype=categories.dtype)
    names = np.array([stacks.number_of((one.name,) if one.name else ()) for one in mine])
    categories, stack = categories.copy(), allocations.stack.copy()
    categories[rows] = numbers[index]
    nameless = stack[rows] == UNKNOWN_STACK
    stack[rows[nameless]] = names[index[nameless]]
    return replace(allocations, stack=stack), categories


def _category(owner: Owner) -> int:
    try:
        return CATEGORIES.index(Category(owner.category))
    except ValueError:
        return CATEGORIES.index(Category.OTHER)
