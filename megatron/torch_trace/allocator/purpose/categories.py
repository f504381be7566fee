# SPDX-License-Identifier: Apache-2.0
"""What memory is for: told by who allocated it, who freed it, and whether it was freed at all.

The rules read call stacks, so they are as good as these: with Python stacks alone what the backward
pass frees has no stack, since autograd's own thread runs no Python then.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np

from megatron.torch_trace.allocator.allocations import BEFORE, Allocations
from megatron.torch_trace.allocator.stack_table import StackTable
from megatron.torch_trace.format.integer_arrays import Column


class Category(Enum):
    """The value is the name in JSON and in tables."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATIONS = "activations"
    TEMPORARIES = "temporaries"
    COMMUNICATION = "communication_buffers"
    OTHER = "other"
    UNKNOWN = "unknown"

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")


CATEGORIES = tuple(Category)
_PIECE = 1 << 19
"""Allocations that are looked at at once."""

_COMMUNICATES = (
    "torch/distributed/",
    "ProcessGroupNCCL",
    "c10d::",
    "nccl:",
    "core/tensor_parallel/mappings.py",
    "core/pipeline_parallel/p2p_communication.py",
    "moe/token_dispatcher.py",
    "deep_ep/",
)
OPTIMIZES = (
    "torch/optim/",
    "apex/optimizers/",
    "pytorch/optimizers/",
    "core/optimizer/",
    "Optimizer.step#",
    "deepspeed/ops/",
)
_GRADIENT_BUFFERS = ("distributed/param_and_grad_buffer.py",)
_INITIALISES = (
    " __init__",
    " get_model",
    " model_provider",
    " _apply",
    " setup_model_and_optimizer",
    "_affine_weight",
)
_RUNS_BACKWARD = (" backward", "autograd::Engine", "autograd::engine", "backward micro-batch")
_RUNS_FORWARD = (" forward", " forward_step", " call", " __call__", "forward micro-batch")


def categories_of(allocations: Allocations, stacks: StackTable, entries: int) -> Column:
    """A category for every allocation, as its position in `CATEGORIES`.

    Args:
        allocations: of one device.
        stacks: of the snapshot.
        entries: length of the device's history.
    """
    freed_by = allocations.freed_by
    found = np.zeros(len(allocations), dtype=np.int8)
    for start in range(0, len(found), _PIECE):
        piece = slice(start, start + _PIECE)
        kept = allocations.end[piece] >= entries
        old = allocations.begin[piece] == BEFORE
        keys = allocations.stack[piece].astype(np.int64) * len(stacks.stacks) + freed_by[piece]
        unique, index = np.unique(keys * 4 + kept * 2 + old, return_inverse=True)
        numbers = [_of_key(key, stacks.stacks) for key in unique.tolist()]
        found[piece] = np.array(numbers, dtype=np.int8)[index.reshape(-1)]
    return found


def _of_key(key: int, stacks: Sequence[Sequence[str]]) -> int:
    stack, freed_by = divmod(key >> 2, len(stacks))
    category = _category(stacks[stack], stacks[freed_by], kept=bool(key & 2), old=bool(key & 1))
    return CATEGORIES.index(category)


def _category(stack: Sequence[str], freed_by: Sequence[str], *, kept: bool, old: bool) -> Category:
    if not stack:
        return Category.UNKNOWN
    if _has(stack, _GRADIENT_BUFFERS):
        return Category.GRADIENTS
    if _has(stack, OPTIMIZES):
        return Category.OPTIMIZER_STATE if kept else Category.TEMPORARIES
    if _has(stack, _COMMUNICATES):
        return Category.COMMUNICATION
    if runs_backward(stack):
        return Category.GRADIENTS if kept else Category.TEMPORARIES
    if runs_forward(stack):
        return Category.ACTIVATIONS if _waits_for_backward(freed_by) else Category.TEMPORARIES
    return Category.PARAMETERS if kept and _has(stack, _INITIALISES) else Category.OTHER


def _waits_for_backward(freed_by: Sequence[str]) -> bool:
    """Whether memory of the forward pass lived until the backward pass, or lives still."""
    return not freed_by or runs_backward(freed_by)


def runs_backward(stack: Sequence[str]) -> bool:
    """Whether a stack is one of the backward pass, also of a forward that it runs again."""
    return _has(stack, _RUNS_BACKWARD)


def runs_forward(stack: Sequence[str]) -> bool:
    """Whether a stack is one of the forward pass, whoever runs it."""
    return _has(stack, _RUNS_FORWARD)


def _has(stack: Sequence[str], parts: Sequence[str]) -> bool:
    return any(part in frame for frame in stack for part in parts)
