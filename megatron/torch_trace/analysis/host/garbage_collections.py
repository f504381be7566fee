# SPDX-License-Identifier: Apache-2.0
"""Collections of Python's garbage collector, and how long the GPU is idle because of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from megatron.torch_trace.analysis.host.threads import Threads
from megatron.torch_trace.analysis.timeline.moment import Moment, longest
from megatron.torch_trace.analysis.timeline.span_names import COLLECTIONS_NAME, is_collection
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Intervals, Ints, ints

COLLECTOR = "Python's garbage collector"
"""What the CPU is said to be in meanwhile."""


@dataclass(frozen=True, slots=True)
class GarbageCollections:
    """What a trace tells of the collector, but for its collections of the youngest objects.

    Args:
        times, time_ns: collections in the window, on all threads, and their union.
        idle_ns: how long the GPU is idle, because the next work is not launched yet, while a thread
            that is to launch it, or the training loop or autograd of that thread, is in one.
        idle_by_step: of that, by step; empty in a trace without steps.
        unrecorded: collections without a span, on threads that were not recorded; None where the
            trace does not tell how many there were.
        longest: the longest one.
    """

    times: int
    time_ns: int
    idle_ns: int
    idle_by_step: tuple[int, ...]
    unrecorded: int | None
    longest: Moment | None = field(default=None, compare=False)


def collection_rows(timeline: Timeline) -> Ints:
    """Rows of `activity.ops`: spans of collections that are in the window, if only for a part."""
    activity, window = timeline.activity, timeline.window
    ops = activity.ops
    mine = activity.named(ops, is_collection) & ops.annotation
    return ints(np.flatnonzero(mine & (ops.end > window.start) & (ops.start < window.end)))


def collecting(timeline: Timeline, rows: Ints, group: Threads) -> Intervals:
    """When a thread of this group, or of its family, was in one of these collections.

    Args:
        timeline: of one rank.
        rows: see `collection_rows`.
        group: threads that launch.
    """
    ops = timeline.activity.ops
    mine = rows[group.holds(ints(ops.track[rows]), with_family=True)]
    return Intervals.of(ops.start[mine], ops.end[mine])


def garbage_collections(timeline: Timeline, idle: Intervals) -> GarbageCollections | None:
    """What the trace tells of them; None where it tells nothing.

    Args:
        timeline: of one rank.
        idle: when the GPU waits for a thread that is in a collection.
    """
    rows = collection_rows(timeline)
    told = timeline.activity.metadata.own.get(COLLECTIONS_NAME)
    unrecorded = told.get("unrecorded") if isinstance(told, dict) else None
    known = isinstance(unrecorded, int)
    if not len(rows) and not known:
        return None
    ops, window = timeline.activity.ops, timeline.window
    steps = window.steps
    by_step = idle.covered([one.start for one in steps], [one.end for one in steps])
    return GarbageCollections(
        times=len(rows),
        time_ns=Intervals.of(ops.start[rows], ops.end[rows]).clip(window.start, window.end).total,
        idle_ns=idle.total,
        idle_by_step=tuple(by_step.tolist()),
        unrecorded=unrecorded if known else None,
        longest=longest(ops.start[rows], ops.end[rows]),
    )
