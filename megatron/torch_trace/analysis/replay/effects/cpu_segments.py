# SPDX-License-Identifier: Apache-2.0
"""What CPU segments are made of, and which segment of another rank does the same work.

Two segments do the same work if they begin with the launch of a kernel by the same name, by the
same operator, on the same thread, in the same step, and it is the n-th such launch on both ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megatron.torch_trace.analysis.replay.kernels.graph import Bools
from megatron.torch_trace.analysis.replay.kernels.rank_graph import RankGraph
from megatron.torch_trace.analysis.replay.kernels.thread_points import LAUNCH, MARK, WAIT
from megatron.torch_trace.analysis.timeline.activity import NONE, Rows
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


def segment_ids(ranks: Sequence[RankGraph]) -> list[Ints]:
    """For each rank a number for each segment; the same number on several ranks: the same work."""
    names: dict[tuple[object, ...], int] = {}
    keys = [_keys(rank, names) for rank in ranks]
    return [key * (1 << 32) + _occurrence(key) for key in keys]


def _keys(rank: RankGraph, names: dict[tuple[object, ...], int]) -> Ints:
    timeline, points = rank.timeline, rank.points
    activity = timeline.activity
    gpu, calls = activity.gpu, activity.calls
    # The first work of each call, and who launched it.
    work = np.full(len(calls) + 1, NONE, dtype=np.int64)
    call = timeline.launches.call[rank.rows]
    work[call[::-1]] = rank.rows[::-1]
    row = np.where(points.call == NONE, NONE, work[points.call])
    known = row != NONE
    launched = np.where(known, gpu.name[row] if len(gpu) else NONE, NONE)
    operator = timeline.launching_operator[row] if len(gpu) else row
    by = np.where(known & (operator != NONE), activity.ops.name[operator], NONE)
    name = np.where(points.call == NONE, NONE, calls.name[points.call] if len(calls) else NONE)
    name = np.where(known, NONE, name)
    marks = np.sort(points.time[points.role == MARK])
    step = np.searchsorted(marks, points.time, side="right")
    main = points.track == (points.track[points.at(MARK)][0] if len(marks) else NONE)
    columns = np.stack((points.role, step, main, launched, by, name))
    distinct, inverse = np.unique(columns, axis=1, return_inverse=True)
    codes = []
    for role, number, on_main, *texts in distinct.T.tolist():
        # Codes of names differ from trace to trace.
        words = [activity.names[code] if code != NONE else "" for code in texts]
        codes.append(names.setdefault((role, number, on_main, *words), len(names)))
    return ints(ints(codes)[inverse.ravel()])


def _occurrence(key: Ints) -> Ints:
    """How many earlier ones have the same key."""
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    sizes = np.diff(np.append(first, len(key)))
    found = np.empty(len(key), dtype=np.int64)
    found[order] = np.arange(len(key)) - np.repeat(first, sizes)
    return found


def aligned(ids: Ints, other: Ints, values: Ints) -> Ints:
    """For each segment the value of the other rank's that does the same work; NONE if it has none.

    Args:
        ids: of the segments.
        other, values: ids and values of the other rank's.
    """
    if not len(other):
        return np.full(len(ids), NONE, dtype=np.int64)
    order = np.argsort(other)
    at = np.minimum(np.searchsorted(other[order], ids), len(other) - 1)
    return ints(np.where(other[order][at] == ids, values[order][at], NONE))


def median_of(columns: Sequence[Ints], otherwise: Ints) -> Ints:
    """Median over ranks of each segment, where two or more, or the only other one, have it."""
    table = np.sort(np.stack(columns).astype(np.float64), axis=0)
    table[table < 0] = np.nan
    table = np.sort(table, axis=0)
    count = (~np.isnan(table)).sum(axis=0)
    at = np.arange(table.shape[1])
    low = table[np.maximum((count - 1) // 2, 0), at]
    high = table[np.minimum(count // 2, len(columns) - 1), at]
    middle = np.where(count > 0, (low + high) / 2, otherwise)
    return ints(np.rint(middle).astype(np.int64))
