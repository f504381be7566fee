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

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megatron.torch_trace.analysis.timeline.activity import NONE, Activity
from megatron.torch_trace.analysis.timeline.code_columns import rows_with
from megatron.torch_trace.columns.intervals import Ints
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.format.categories import is_kernel_launch
from megatron.torch_trace.format.step_names import step_number
from megatron.torch_trace.gpu_record.other_devices import OtherDevice


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

    def share(self, time: int) -> float:
        """A time in ns as a part of the window, 0 to 1; 0 where the window lasts no time."""
        return time / self.length if self.length else 0.0

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


def find_window(activity: Activity, launched: Ints, *, one_clock: bool = True) -> Window | None:
    """The window of a trace.

    Args:
        activity: the trace.
        launched: when each row of `activity.gpu` was launched, ns; NONE where unknown.
        one_clock: GPU and CPU are on one clock; else the CPU's alone bounds the window.

    Returns:
        None for a trace that has no steps, no GPU work, no launches, and no operators that count.

    Raises:
        MergedTraceError: the same step exists in several processes.
    """
    gpu = activity.gpu
    marks = _marks(activity)
    if not marks:
        if not len(gpu):
            return _launching(activity) or _of_the_cpu(activity)
        return Window(int(gpu.start.min()), int(gpu.end.max()))
    start = marks[0][1]
    end = max(mark[2] for mark in marks)
    inside = (launched >= start) & (launched < end)
    if one_clock and inside.any():
        end = max(end, int(gpu.end[inside].max()))
    starts = [mark[1] for mark in marks]
    steps = tuple(
        Step(number, begin, following, cpu_end)
        for (number, begin, cpu_end, _), following in zip(marks, [*starts[1:], end], strict=True)
    )
    return Window(start, end, steps, marks[0][3])


def _launching(activity: Activity) -> Window | None:
    """From the first to the last launch of kernels, of which not one was recorded."""
    calls = activity.calls
    mine = activity.named(calls, is_kernel_launch)
    if not mine.any() or OtherDevice.among(activity.others):
        return None
    return Window(int(calls.start[mine].min()), int(calls.end[mine].max()))


def _of_the_cpu(activity: Activity) -> Window | None:
    """From the first to the last operator, where there was no GPU to use."""
    ops = activity.ops
    other = OtherDevice.among(activity.others)
    gpu = activity.metadata.devices or len(activity.calls)
    if (gpu and other is None) or not (~ops.annotation).any():
        return None
    track = int(np.bincount(ops.track[~ops.annotation]).argmax())
    return Window(int(ops.start.min()), int(ops.end.max()), track=track)


def _marks(activity: Activity) -> list[tuple[int, int, int, int]]:
    """(number, start, end, track) of each step, by start.

    A number that comes again is another step: of a profiler that was started again, or of another
    one in this process. A mark within another is that step once more.
    """
    numbers = {}
    for code, name in enumerate(activity.names):
        number_told = step_number(name)
        if number_told is not None:
            numbers[code] = number_told
    ops = activity.ops
    rows = np.flatnonzero(rows_with(ops.name, numbers, len(activity.names)))
    process: dict[int, Any] = {}
    found: list[tuple[int, int, int, int]] = []
    # Sorted by start, of equal ones the longer first.
    for row in rows.tolist():
        number, track = numbers[int(ops.name[row])], int(ops.track[row])
        here = activity.tracks[track][0]
        if process.setdefault(number, here) != here:
            raise MergedTraceError(activity.path)
        start, end = int(ops.start[row]), int(ops.end[row])
        if not found or end > found[-1][2]:
            found.append((number, start, end, track))
    return found
