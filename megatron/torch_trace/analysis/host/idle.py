# SPDX-License-Identifier: Apache-2.0
"""The CPU side: idle causes, synchronisations, data loader, time outside of operators."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from megatron.torch_trace.analysis.gpu_work.kernels import NO_OPERATOR
from megatron.torch_trace.analysis.host.blocking_copies import blocking_copies
from megatron.torch_trace.analysis.host.data_loader import (
    DataLoading,
    LoaderSupply,
    data_loading,
    loader_intervals,
    loader_supply,
)
from megatron.torch_trace.analysis.host.garbage_collections import (
    GarbageCollections,
    garbage_collections,
)
from megatron.torch_trace.analysis.host.idle_causes import IdleCauses, idle_of
from megatron.torch_trace.analysis.host.idle_holders import IdleHolder
from megatron.torch_trace.analysis.host.long_gaps import LongGaps
from megatron.torch_trace.analysis.host.loop_paths import LoopPath, loop_paths
from megatron.torch_trace.analysis.host.not_started import NotStarted
from megatron.torch_trace.analysis.host.python_frames import PythonRow, python_rows
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.moment import Moment, longest
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Intervals, Ints

_SYNC_WORDS = ("streamsynchronize", "devicesynchronize", "eventsynchronize", "ctxsynchronize")
TINY_NS = 5_000


@dataclass(frozen=True, slots=True)
class SyncRow:
    """Calls that make the CPU wait for the GPU.

    Args:
        call: `cudaStreamSynchronize`, ...
        caller: the outermost operator around it, `(no operator)` when Python called it directly.
        calls, time_ns, max_ns: how often and how long, within the steps.
        longest: the longest of them.
    """

    call: str
    caller: str
    calls: int
    time_ns: int
    max_ns: int
    longest: Moment | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class LoopThread:
    """What the thread of the training loop did, in ns; the four add up to the window.

    Args:
        operators_ns: in operators of torch, launches and all.
        waiting_ns: in calls that wait for the GPU.
        data_ns: in the data loader.
        other_ns: the rest: Python, other threads' turns at the interpreter, the backward pass,
            which another thread runs.
        backward_ns: of the rest, while operators ran on other threads.
    """

    operators_ns: int
    waiting_ns: int
    data_ns: int
    other_ns: int
    backward_ns: int


@dataclass(frozen=True, slots=True)
class Host:
    """The CPU side of one rank.

    Args:
        idle: why the GPU was idle.
        idle_holders: what the CPU did in `idle.cpu_ns`, the longest first.
        long_gaps: the long pieces of `idle.cpu_ns`; None if there are none.
        not_started: more about `idle.gpu_ns`; None if that is nothing.
        loop_paths: what the loop's thread did, by path; empty if nothing tells the thread.
        syncs: synchronisations by caller, by time.
        pageable_copies: calls that copy pageable memory to the GPU and wait for it, in the same
            way; they are no part of `syncs`, nor of what it makes idle.
        collections: of Python's garbage collector; None where the trace tells nothing of them.
        data_loading: by step; empty when no data loader is in the trace.
        loader_supply: how fast batches are made; None if the trace does not show it.
        loop_thread: None for a trace without ProfilerStep.
        python: functions of the loop's thread by their own time; empty without stacks.
        tiny_kernels, tiny_kernels_ns: compute kernels shorter than 5 us.
        overhead_ns: union of what the profiler itself reports as overhead, within the window.
    """

    idle: IdleCauses
    syncs: tuple[SyncRow, ...]
    data_loading: tuple[DataLoading, ...]
    loader_supply: LoaderSupply | None
    loop_thread: LoopThread | None
    python: tuple[PythonRow, ...]
    tiny_kernels: int
    tiny_kernels_ns: int
    overhead_ns: int
    idle_holders: tuple[IdleHolder, ...] = ()
    long_gaps: LongGaps | None = None
    not_started: NotStarted | None = None
    loop_paths: tuple[LoopPath, ...] = ()
    pageable_copies: tuple[SyncRow, ...] = ()
    collections: GarbageCollections | None = None


def look_at_host(timeline: Timeline) -> Host:
    """Everything about the CPU side."""
    activity, window = timeline.activity, timeline.window
    gaps = timeline.sets.busy.gaps(window.start, window.end)
    loader = loader_intervals(timeline)
    elsewhere = not_python(timeline, loader)
    syncing = sync_rows_of(timeline)
    overhead = Intervals.of(activity.overhead.start, activity.overhead.end)
    short = timeline.is_compute & timeline.in_window
    short &= (activity.gpu.end - activity.gpu.start) < TINY_NS
    idle = idle_of(timeline, gaps, loader, syncing)
    copying, _ = blocking_copies(timeline, from_host=True)
    return Host(
        idle=idle.causes,
        idle_holders=idle.holders,
        long_gaps=idle.long_gaps,
        not_started=idle.not_started,
        syncs=_syncs(timeline, syncing),
        data_loading=data_loading(timeline, gaps, loader),
        loader_supply=loader_supply(timeline, loader),
        loop_thread=_loop_thread(timeline, loader, syncing),
        python=python_rows(timeline, elsewhere),
        tiny_kernels=int(short.sum()),
        tiny_kernels_ns=int(timeline.clipped[short].sum()),
        overhead_ns=overhead.clip(window.start, window.end).total,
        loop_paths=loop_paths(timeline),
        pageable_copies=_syncs(timeline, _within_steps(timeline, copying)),
        collections=garbage_collections(timeline, idle.collecting),
    )


def not_python(timeline: Timeline, loader: Intervals) -> Intervals:
    """When the loop's thread was in operators, in calls of the runtime, or in the data loader."""
    activity, track = timeline.activity, timeline.window.track
    if track == NONE:
        return Intervals.empty()
    mine = ~activity.ops.annotation & activity.on_thread(activity.ops, track)
    here = activity.on_thread(activity.calls, track)
    operators = Intervals.of(activity.ops.start[mine], activity.ops.end[mine])
    calls = Intervals.of(activity.calls.start[here], activity.calls.end[here])
    return operators.union(calls).union(loader)


def sync_rows_of(timeline: Timeline) -> Ints:
    """Rows of `activity.calls` that wait for the GPU, begun within the steps.

    The device synchronisation with which the profiler ends its window is behind the last step.
    """
    mine = timeline.activity.named(timeline.activity.calls, _synchronises)
    return _within_steps(timeline, np.flatnonzero(mine))


def _within_steps(timeline: Timeline, rows: Ints) -> Ints:
    """Those of these calls that begin within the steps."""
    window, start = timeline.window, timeline.activity.calls.start[rows]
    end = max((step.cpu_end for step in window.steps), default=window.end)
    return rows[(start >= window.start) & (start < end)]


def _synchronises(name: str) -> bool:
    folded = name.lower()
    return any(word in folded for word in _SYNC_WORDS)


def _syncs(timeline: Timeline, rows: Ints) -> tuple[SyncRow, ...]:
    activity = timeline.activity
    calls, ops = activity.calls, activity.ops
    caller = timeline.operators.outermost(calls.track[rows], calls.start[rows])
    found: dict[tuple[str, str], list[int]] = {}
    for row, op in zip(rows.tolist(), caller.tolist(), strict=True):
        name = activity.names[int(ops.name[op])] if op != NONE else NO_OPERATOR
        found.setdefault((activity.names[int(calls.name[row])], name), []).append(row)
    result = []
    for (call, name), members in found.items():
        length = calls.end[members] - calls.start[members]
        result.append(
            SyncRow(
                call,
                name,
                len(members),
                int(length.sum()),
                int(length.max(initial=0)),
                longest(calls.start[members], calls.end[members]),
            )
        )
    return tuple(sorted(result, key=lambda row: (-row.time_ns, row.call, row.caller)))


def _loop_thread(timeline: Timeline, loader: Intervals, syncing: Ints) -> LoopThread | None:
    activity, window = timeline.activity, timeline.window
    if window.track == NONE:
        return None
    ops, calls = activity.ops, activity.calls
    own = activity.on_thread(ops, window.track)
    mine = ~ops.annotation & own
    operators = Intervals.of(ops.start[mine], ops.end[mine]).clip(window.start, window.end)
    others = ~ops.annotation & ~own
    backward = Intervals.of(ops.start[others], ops.end[others]).clip(window.start, window.end)
    here = syncing[activity.on_thread(calls, window.track)[syncing]]
    waiting = Intervals.of(calls.start[here], calls.end[here]).clip(window.start, window.end)
    data = loader.minus(waiting)
    working = operators.minus(waiting).minus(data)
    rest = working.union(waiting).union(data).gaps(window.start, window.end)
    return LoopThread(
        operators_ns=working.total,
        waiting_ns=waiting.total,
        data_ns=data.total,
        other_ns=rest.total,
        backward_ns=rest.intersect(backward).total,
    )
