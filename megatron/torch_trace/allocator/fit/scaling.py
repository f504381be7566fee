# SPDX-License-Identifier: Apache-2.0
"""What grows with the micro-batch: activations, and what the passes hold for a moment.

Not all that a backward pass holds for a moment does: the gradient of a weight, before it is added
to its buffer, is as large as the weight. Told by sizes, which the training writes beside a
snapshot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.allocator.allocations import Allocations
from megatron.torch_trace.allocator.device_memory import DeviceMemory
from megatron.torch_trace.allocator.purpose.categories import (
    CATEGORIES,
    OPTIMIZES,
    Category,
    runs_backward,
    runs_forward,
)
from megatron.torch_trace.allocator.purpose.owners import GLOBAL_BUFFER
from megatron.torch_trace.allocator.purpose.without_stack import BLAS_WORKSPACE, native
from megatron.torch_trace.allocator.stack_table import Stack
from megatron.torch_trace.format.integer_arrays import Ints

_GLOBAL_BUFFER_CODE = ("core/utils.py", " get_tensor")
_LEAST_SIZES = 3
"""Different sizes of weights that one line allocates and activations do not need to be told from.

The line that computes gradients of inputs allocates two of them at most: of the hidden size and of
the MLP's.
"""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Which allocations grow with the micro-batch; each array has a truth for every allocation.

    Args:
        grows: they do.
        unsure: they may, or they may not.
    """

    grows: Ints
    unsure: Ints


def scaling_of(memory: DeviceMemory) -> Scaling:
    """Of one device."""
    allocations = memory.allocations
    category = {one: memory.categories == number for number, one in enumerate(CATEGORIES)}
    optimizes = matching(memory, lambda frame: any(part in frame for part in OPTIMIZES))
    passing = category[Category.TEMPORARIES] & ~optimizes
    by_autograd = passing & native(allocations, len(memory.history))
    of_weights, ambiguous = _weight_gradients(memory, passing, by_autograd)
    buffer = category[Category.COMMUNICATION] & matching(memory, _is_global_buffer)
    workspace = category[Category.OTHER] & matching(memory, BLAS_WORKSPACE.__eq__)
    other = category[Category.COMMUNICATION] | category[Category.OTHER]
    return Scaling(
        grows=category[Category.ACTIVATIONS] | (passing & ~of_weights) | buffer,
        unsure=(other & ~buffer & ~workspace) | ambiguous,
    )


def matching(memory: DeviceMemory, wanted: Callable[[str], bool]) -> Ints:
    """Which allocations have a frame that is wanted."""
    stacks = memory.snapshot.stacks.stacks
    return _by_stack(memory.allocations, lambda number: any(map(wanted, stacks[number])))


def _by_stack(allocations: Allocations, wanted: Callable[[int], bool]) -> Ints:
    used = np.unique(allocations.stack)
    if not len(used):
        return np.zeros(0, dtype=bool)
    matches = np.array([wanted(one) for one in used.tolist()], dtype=bool)
    found: Ints = matches[np.searchsorted(used, allocations.stack)]
    return found


def _is_global_buffer(frame: str) -> bool:
    return frame == GLOBAL_BUFFER or all(part in frame for part in _GLOBAL_BUFFER_CODE)


def _weight_gradients(memory: DeviceMemory, passing: Ints, by_autograd: Ints) -> tuple[Ints, Ints]:
    """Allocations that are gradients of weights, and those that may be.

    Args:
        memory: of one device.
        passing: what the passes hold for a moment.
        by_autograd: the same of autograd's own thread.
    """
    allocations, stacks = memory.allocations, memory.snapshot.stacks.stacks
    weights = np.array(sorted(memory.weight_bytes), dtype=np.int64)
    as_large = np.isin(allocations.requested, weights)
    passes = _by_stack(allocations, lambda number: runs_forward(stacks[number]))
    backward = _by_stack(allocations, lambda number: runs_backward(stacks[number]))
    # A size of the forward pass is one of the sequence and the micro-batch.
    ambiguous = np.isin(allocations.requested, allocations.requested[passes & ~backward])
    lines = _lines_of_weights(allocations, stacks, passing & backward, memory.weight_bytes)
    told = _by_stack(allocations, lambda number: stacks[number][:1] in lines)
    candidates = as_large & ((passing & backward) | by_autograd)
    certain = candidates & (told | ~ambiguous)
    return certain, candidates & ~certain


def _lines_of_weights(
    allocations: Allocations, stacks: list[Stack], rows: Ints, weights: frozenset[int]
) -> set[Stack]:
    """The lines of code that allocate nothing but gradients of weights, and those of several."""
    sizes: dict[Stack, set[int]] = defaultdict(set)
    pairs = np.stack([allocations.stack[rows], allocations.requested[rows]], axis=1)
    for number, size in np.unique(pairs, axis=0).tolist():
        sizes[stacks[number][:1]].add(size)
    return {
        line for line, its in sizes.items() if its <= weights and len(its) >= _LEAST_SIZES and line
    }
