# SPDX-License-Identifier: Apache-2.0
"""The window that is analysed and the steps in it.

ProfilerStep#5   [--------)
ProfilerStep#6             [---------)
GPU                  ####  ####   ########     launched in 5, in 5, in 6
window           [-----------------------)
step 5           [---------)
step 6                     [-------------)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megatron.torch_trace.analysis.timeline.activity import NONE, Activity
from megatron.torch_trace.analysis.timeline.code_columns import rows_with
from megatron.torch_trace.columns.intervals import Ints
from megatron.torch_trace.errors import UsageError

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step: [start, end) in ns; `cpu_end` is where its own annotation ends."""

    number: int
    start: int
    end: int
    cpu_end: int


@dataclass(frozen=True, slots=True)
class Window:
    """What is analysed: [start, end) in ns.

    Args:
        start, end: bounds.
        steps: in order, without gaps; empty for a trace without ProfilerStep.
        track: code of the track that the steps are on (the training loop's thread), or NONE.
    """

    start: int
    end: int
    steps: tuple[Step, ...] = ()
    track: int = NONE

    @property
    def length(self) -> int:
        return self.end - self.start

    def step_index(self, times: Ints) -> Ints:
        """Position in `steps` of the step that holds each time; -1 outside of all."""
        starts = np.array([s.start for s in self.steps], dtype=np.int64)
        index = np.searchsorted(starts, times, side="right") - 1
        if self.steps:
            index[times >= self.end] = -1
        return np.asarray(index, dtype=np.int64)


class MergedTraceError(UsageError):
    """Several ranks in one file: their work cannot be told apart again."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: a merged trace, good for viewing only; name the traces of the single ranks."
        )


def find_window(activity: Activity, launched: Ints) -> Window | None:
    """The window of a trace.

    Args:
        activity: the trace.
        launched: when each row of `activity.gpu` was launched, ns; NONE where unknown.

    Returns:
        None for a trace that has neither steps nor GPU work.

    Raises:
        MergedTraceError: the same step exists in several processes.
    """
    gpu = activity.gpu
    marks = _marks(activity)
    if not marks:
        if not len(gpu):
            return None
        return Window(int(gpu.start.min()), int(gpu.end.max()))
    start = marks[0][1]
    end = max(mark[2] for mark in marks)
    inside = (launched >= start) & (launched < end)
    if inside.any():
        end = max(end, int(gpu.end[inside].max()))
    starts = [mark[1] for mark in marks]
    steps = tuple(
        Step(number, begin, following, cpu_end)
        for (number, begin, cpu_end, _), following in zip(marks, [*starts[1:], end], strict=True)
    )
    return Window(start, end, steps, marks[0][3])


def _marks(activity: Activity) -> list[tuple[int, int, int, int]]:
    """(number, start, end, track) of each step, by start."""
    numbers = {}
    for code, name in enumerate(activity.names):
        match = _STEP.fullmatch(name)
        if match:
            numbers[code] = int(match[1])
    ops = activity.ops
    rows = np.flatnonzero(rows_with(ops.name, numbers, len(activity.names)))
    found: dict[int, tuple[int, int, int, int]] = {}
    for row in rows.tolist():
        number, track = numbers[int(ops.name[row])], int(ops.track[row])
        if number in found:
            here, there = activity.tracks[found[number][3]], activity.tracks[track]
            if here[0] != there[0]:
                raise MergedTraceError(activity.path)
            continue
        found[number] = (number, int(ops.start[row]), int(ops.end[row]), track)
    return sorted(found.values(), key=lambda mark: mark[1])
