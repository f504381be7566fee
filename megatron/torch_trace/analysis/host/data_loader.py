# SPDX-License-Identifier: Apache-2.0
"""The data loader: how long the training loop waits in it, and how fast it makes batches.

A loader that keeps up by a hair costs nothing in the window and everything without the profiler,
which slows the loop down. The thread that pins finished batches shows when each one was ready:

    loop       next|  micro-batch  |next|  micro-batch  |next|      asks for one more each time
    worker         [-- makes --]        [-- makes --]               one worker
    pin thread                  ^ready               ^ready

From the later of "the one before was ready" and "the loop asked for one more" to "ready" a worker
was busy for certain, so that time is a lower bound of what a batch takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.code_columns import present
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Intervals, Ints, ints

_NEXT = ("enumerate(DataLoader)#", "enumerate(DataPipe)#")
_PIN_CALL = "cudaPointerGetAttributes"
_TOGETHER_NS = 2_000_000
_LEAST_BATCHES = 4


@dataclass(frozen=True, slots=True)
class DataLoading:
    """Time in the data loader's `__next__` on the training loop's thread, in one step.

    Args:
        step: its number; None for the whole window of a trace without ProfilerStep.
        calls: batches asked for.
        time_ns: union of the calls.
        idle_ns: of that, while the GPU was idle.
    """

    step: int | None
    calls: int
    time_ns: int
    idle_ns: int


@dataclass(frozen=True, slots=True)
class LoaderSupply:
    """How fast one worker makes batches, against how fast the loop uses them.

    Args:
        batches: batches seen to become ready.
        batch_ns: what a batch takes at least (upper quartile over them).
        interval_ns: median time between two requests of the loop within a step.
        use: batch_ns / interval_ns: 1 is a loader without any reserve.
    """

    batches: int
    batch_ns: int
    interval_ns: int
    use: float


def is_loader(name: str) -> bool:
    """Whether a range is torch's own around the loader's `__next__`."""
    return name.startswith(_NEXT)


def loader_intervals(timeline: Timeline) -> Intervals:
    """When the training loop's thread was inside the data loader."""
    ops = timeline.activity.ops
    mine = timeline.activity.named(ops, is_loader)
    if timeline.window.track != NONE:
        mine &= ops.track == timeline.window.track
    union = Intervals.of(ops.start[mine], ops.end[mine])
    return union.clip(timeline.window.start, timeline.window.end)


def data_loading(timeline: Timeline, gaps: Intervals, loader: Intervals) -> tuple[DataLoading, ...]:
    """Time in the loader by step, ns; without steps in the whole window.

    Args:
        timeline: of one rank.
        gaps: when the GPU is idle.
        loader: see `loader_intervals`.

    Source: docs/computed.md, "Data loader".
    """
    steps = timeline.window.steps
    if not len(loader):
        return ()
    idle = loader.intersect(gaps)
    if not steps:
        return (DataLoading(None, len(loader), loader.total, idle.total),)
    starts, ends = ints([s.start for s in steps]), ints([s.end for s in steps])
    calls = np.bincount(
        np.maximum(timeline.window.step_index(loader.starts), 0), minlength=len(steps)
    )
    return tuple(
        DataLoading(step.number, int(n), int(time), int(lost))
        for step, n, time, lost in zip(
            steps, calls, loader.covered(starts, ends), idle.covered(starts, ends), strict=True
        )
    )


def loader_supply(timeline: Timeline, loader: Intervals) -> LoaderSupply | None:
    """How fast batches are made, ns; None if too few are seen, or if several workers make them.

    Source: docs/computed.md, "Data loader".
    """
    ready = _ready_times(timeline)
    step = timeline.window.step_index(loader.starts)
    between = np.diff(loader.starts)[np.diff(step) == 0]
    if len(ready) < _LEAST_BATCHES or len(between) < _LEAST_BATCHES - 1:
        return None
    asked = np.searchsorted(loader.ends, ready[1:], side="right") - 1
    known = asked >= 0
    begun = np.maximum(ready[:-1], np.where(known, loader.ends[np.maximum(asked, 0)], 0))
    # Over the pause between two steps nothing is asked for, and nothing can be concluded.
    busy = (ready[1:] - begun)[known]
    if len(busy) < _LEAST_BATCHES - 1:
        return None
    batch = int(np.sort(busy)[(3 * len(busy)) // 4])
    if int(np.diff(ready).min()) < batch // 2:
        return None
    interval = int(np.median(between))
    return LoaderSupply(len(ready), batch, interval, batch / interval)


def _ready_times(timeline: Timeline) -> Ints:
    """When batches were ready: the calls of torch's pin-memory thread, which launches nothing."""
    activity, window = timeline.activity, timeline.window
    calls = activity.calls
    pinning = activity.named(calls, lambda name: name == _PIN_CALL)
    mine = pinning.copy()
    # The loop's own threads run operators; torch's pin-memory thread does nothing but this.
    for track in present(calls.track[mine]):
        here = calls.track == track
        if (activity.ops.track == track).any() or not pinning[here].all():
            mine &= ~here
    threads, counts = np.unique(calls.track[mine], return_counts=True)
    if not len(threads):
        return ints([])
    chosen = mine & (calls.track == threads[counts.argmax()])
    times = calls.start[chosen]
    times = times[(times >= window.start) & (times < window.end)]
    return ints(times[np.diff(times, prepend=-(1 << 62)) > _TOGETHER_NS])
