# SPDX-License-Identifier: Apache-2.0
"""How often the allocator asked CUDA for memory, and had to give some back first.

In the steady state it asks for none: what one step gives back serves the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.allocator.growth import step_bounds
from megatron.torch_trace.allocator.snapshot import Action, History, Snapshot
from megatron.torch_trace.allocator.stack_table import Stack, shortened

_BY_USER = "empty_cache"


@dataclass(frozen=True, slots=True)
class CudaRequests:
    """What one device's allocator asked of CUDA.

    Args:
        asked: requests for memory in the whole history.
        steady: of these the ones after the first marked step; in the second half of the history
            where no steps are marked.
        marked: whether steps are marked.
        steady_seconds: how long that is; 0 where the history has no times.
        retries: how often it gave unused memory back, since CUDA had none left, and asked again.
        retry_bytes: what it gave back then.
        retry_stack: who wanted the memory the last time, the innermost frame first.
    """

    asked: int
    steady: int
    marked: bool
    steady_seconds: float
    retries: int
    retry_bytes: int
    retry_stack: Stack


def cuda_requests(snapshot: Snapshot, history: History) -> CudaRequests:
    """Of one device.

    Args:
        snapshot: its steps and stacks.
        history: of this device alone.
    """
    asked = np.flatnonzero(history.action == Action.SEGMENT_ALLOC)
    start, marked = _steady_from(snapshot, history)
    end = int(history.time[-1]) if len(history) else 0
    rows, given_back = _retries(snapshot, history)
    stack = snapshot.stacks.python(int(history.stack[rows[-1]])) if rows else ()
    return CudaRequests(
        asked=len(asked),
        steady=int((history.time[asked] >= start).sum()) if end > start else 0,
        marked=marked,
        steady_seconds=(end - start) / 1e9 if end > start else 0.0,
        retries=len(rows),
        retry_bytes=given_back,
        retry_stack=shortened(stack) if stack else (),
    )


def _steady_from(snapshot: Snapshot, history: History) -> tuple[int, bool]:
    bounds, marked = step_bounds(snapshot, history)
    if marked:
        return int(bounds[1]), True
    if not len(history):
        return 0, False
    return (int(history.time[0]) + int(history.time[-1])) // 2, False


def _retries(snapshot: Snapshot, history: History) -> tuple[list[int], int]:
    """Entries that asked CUDA right after memory was given back to it, and how much that was.

    Between two requests of a program the allocator writes something else first, except after
    `torch.cuda.empty_cache()`, which the stack shows.
    """
    if not snapshot.has_blocks:
        return [], 0
    action = history.action
    gives = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    asks = np.flatnonzero((action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_MAP))
    rows, total = [], 0
    for row in asks[gives[asks - 1] & (asks > 0)].tolist():
        first = row
        while first > 0 and gives[first - 1]:
            first -= 1
        stacks = {int(history.stack[one]) for one in range(first, row)}
        if not any(_BY_USER in frame for one in stacks for frame in snapshot.stacks.stacks[one]):
            rows.append(row)
            total += int(history.size[first:row].sum())
    return rows, total
