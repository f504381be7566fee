# SPDX-License-Identifier: Apache-2.0
"""Leaks: stacks whose memory grows from step to step and is never given back."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.allocator.allocations import Allocations
from megatron.torch_trace.allocator.snapshot import History, Snapshot
from megatron.torch_trace.allocator.stack_table import Stack, shortened
from megatron.torch_trace.format.integer_arrays import Ints, ints

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)|Optimizer\.step#")
_LEAST_STEPS = 3
_PIECES = 8
"""So many pieces of equal length stand for steps where none are marked."""


@dataclass(frozen=True, slots=True)
class Growth:
    """One stack that keeps more with every step.

    Args:
        size_per_step: bytes that stay of a step, the median over whole steps.
        steps: in so many steps.
        marked: whether steps are marked in the snapshot; else they are eighths of the history.
        stack: who allocates, the innermost frame first.
    """

    size_per_step: int
    steps: int
    marked: bool
    stack: Stack


def step_bounds(snapshot: Snapshot, history: History) -> tuple[Ints, bool]:
    """Times at which steps begin, with the end of the last whole one, and whether they are marked.

    Steps are profiler steps, or what lies between two of the optimizer's steps.
    """
    for wanted in ("ProfilerStep", "Optimizer.step#"):
        starts = sorted(
            {a.start for a in snapshot.annotations if _STEP.match(a.name) and wanted in a.name}
        )
        starts = [one for one in starts if not len(history) or one >= history.time[0]]
        if len(starts) > _LEAST_STEPS:
            return ints(np.array(starts, dtype=np.int64)), True
    if not len(history) or history.time[0] == history.time[-1]:
        return ints(np.zeros(0, dtype=np.int64)), False
    bounds = np.linspace(history.time[0], history.time[-1], _PIECES + 1)
    return ints(bounds.astype(np.int64)), False


def growth_of(snapshot: Snapshot, history: History, allocations: Allocations) -> tuple[Growth, ...]:
    """Stacks that kept something of every step but the first, the most first.

    What the last step allocated may be needed by the next one: it does not count.
    """
    bounds, marked = step_bounds(snapshot, history)
    steps = len(bounds) - 1
    if steps < _LEAST_STEPS:
        return ()
    stays = np.flatnonzero((allocations.begin >= 0) & (allocations.end >= len(history)))
    step = np.searchsorted(bounds, history.time[allocations.begin[stays]], side="right") - 1
    kept: dict[Stack, Ints] = defaultdict(lambda: np.zeros(steps, dtype=np.int64))
    for row, at in zip(stays, step, strict=True):
        if 0 <= at < steps:
            stack = shortened(snapshot.stacks.python(int(allocations.stack[row])))
            kept[stack][at] += int(allocations.size[row])
    found = [
        Growth(int(np.median(sizes[1:-1])), steps, marked, stack)
        for stack, sizes in kept.items()
        if stack and (sizes[1:-1] > 0).all()
    ]
    return tuple(sorted(found, key=lambda one: (-one.size_per_step, one.stack)))
