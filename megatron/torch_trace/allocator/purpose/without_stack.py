# SPDX-License-Identifier: Apache-2.0
"""What memory without a call stack is for, as far as something else tells it.

Where Python stacks are recorded, autograd's own thread has none: what it allocates in the window
and frees there is a temporary of the backward pass. cuBLAS's workspaces are older than the window,
and no tensor holds them; the training tells how large they are.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from megatron.torch_trace.allocator.allocations import BEFORE, Allocations
from megatron.torch_trace.allocator.purpose.categories import CATEGORIES, Category
from megatron.torch_trace.allocator.stack_table import UNKNOWN_STACK, StackTable
from megatron.torch_trace.format.integer_arrays import Column, Ints

BLAS_WORKSPACE = "cuBLAS workspace, by its size"
"""The name of a holder."""


def native(allocations: Allocations, entries: int) -> Ints:
    """Which allocations are those of autograd's own thread, which has no Python stack.

    Args:
        allocations: of one device.
        entries: length of the device's history.
    """
    seen: Ints = (allocations.begin != BEFORE) & (allocations.end < entries)
    if not (allocations.stack[seen] != UNKNOWN_STACK).any():  # no stacks were recorded
        return np.zeros(len(seen), dtype=bool)
    found: Ints = seen & (allocations.stack == UNKNOWN_STACK)
    return found


def told_without_stack(
    allocations: Allocations,
    categories: Column,
    stacks: StackTable,
    workspaces: Collection[int],
    *,
    entries: int,
) -> tuple[Allocations, Column]:
    """What is unknown by its stack and has no owner, told in another way where there is one.

    Args:
        allocations: of one device.
        categories: of these, with what owners say.
        stacks: of the snapshot.
        workspaces: bytes that cuBLAS's workspaces have.
        entries: length of the device's history.

    Returns:
        Both, with what is known now.
    """
    unknown = categories == CATEGORIES.index(Category.UNKNOWN)
    temporary = unknown & native(allocations, entries)
    sizes = np.array(sorted(workspaces), dtype=np.int64)
    workspace = unknown & (allocations.begin == BEFORE) & (allocations.end >= entries)
    workspace &= np.isin(allocations.requested, sizes)
    if not temporary.any() and not workspace.any():
        return allocations, categories
    categories, stack = categories.copy(), allocations.stack.copy()
    categories[temporary] = CATEGORIES.index(Category.TEMPORARIES)
    categories[workspace] = CATEGORIES.index(Category.OTHER)
    if workspace.any():
        stack[workspace] = stacks.number_of((BLAS_WORKSPACE,))
    return replace(allocations, stack=stack), categories
