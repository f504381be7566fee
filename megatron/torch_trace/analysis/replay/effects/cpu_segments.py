# SPDX-License-Identifier: Apache-2.0
"""What CPU segments are made of: launches, operators, ranges."""

from __future__ import annotations

import numpy as np

from megatron.torch_trace.analysis.replay.kernels.graph import Bools
from megatron.torch_trace.analysis.replay.kernels.rank_graph import RankGraph
from megatron.torch_trace.analysis.replay.kernels.thread_points import LAUNCH, WAIT
from megatron.torch_trace.analysis.timeline.activity import Rows
from megatron.torch_trace.analysis.timeline.code_columns import present
from megatron.torch_trace.columns.intervals import Intervals, Ints, ints


def launch_parts(rank: RankGraph, duration: Ints) -> Ints:
    """How much of each segment is the call that launches at its begin, ns."""
    points, calls = rank.points, rank.timeline.activity.calls
    found = np.zeros(len(points), dtype=np.int64)
    at = points.at(LAUNCH)
    call = points.call[at]
    found[at] = np.minimum(calls.end[call] - points.time[at], duration[at])
    return found


def parts_in(rank: RankGraph, duration: Ints, rows: Rows, chosen: Bools) -> Ints:
    """How much of each segment lies in ranges of its own thread, ns.

    Args:
        duration: of the segments, ns.
        rows: ranges, of which `chosen` count.
    """
    points = rank.points
    found = np.zeros(len(points), dtype=np.int64)
    # Where a call waits for the GPU its own time is what counts, not what it waited.
    works = (points.role != WAIT) & (duration > 0)
    for track in present(points.track):
        mine = np.flatnonzero((points.track == track) & works)
        here = chosen & (rows.track == track)
        union = Intervals.of(rows.start[here], rows.end[here])
        start = points.time[mine]
        found[mine] = union.covered(start, start + duration[mine])
    return found


def operator_parts(rank: RankGraph, duration: Ints) -> Ints:
    """How much of each segment is in operators, calls that launch aside, ns."""
    ops = rank.timeline.activity.ops
    inside = parts_in(rank, duration, ops, ~ops.annotation)
    return ints(np.maximum(inside - launch_parts(rank, duration), 0))


def recorded_operators(rank: RankGraph, duration: Ints) -> tuple[Ints, Ints]:
    """Of each segment how many operators begin in it, and how much of it is in operators, ns."""
    points, ops = rank.points, rank.timeline.activity.ops
    count = np.zeros(len(points), dtype=np.int64)
    for track in present(points.track):
        mine = np.flatnonzero(points.track == track)
        starts = np.sort(ops.start[~ops.annotation & (ops.track == track)])
        begin = points.time[mine]
        ends = np.searchsorted(starts, begin + duration[mine])
        count[mine] = ends - np.searchsorted(starts, begin)
    return ints(np.maximum(count, 0)), parts_in(rank, duration, ops, ~ops.annotation)
