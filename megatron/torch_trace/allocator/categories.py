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
from megatron.torch_trace.format.integer_arrays import Ints, ints


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


def categories_of(allocations: Allocations, stacks: StackTable, entries: int) -> Ints:
    """A category for every allocation, as its position in `CATEGORIES`.

    Args:
        allocations: of one device.
        stacks: of the snapshot.
        entries: length of the device's history.
    """
    kept = (allocations.end >= entries).astype(np.int64)
    old = (allocations.begin == BEFORE).astype(np.int64)
    keys = np.stack([allocations.stack, allocations.freed_by, kept, old])
    unique, index = np.unique(keys, axis=1, return_inverse=True)
    found = [
        CATEGORIES.index(
            _category(stacks.stacks[stack], stacks.stacks[freed], kept=bool(stays), old=bool(was))
        )
        for stack, freed, stays, was in unique.T
    ]
    return ints(np.array(found, dtype=np.int64)[index.reshape(-1)])


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
