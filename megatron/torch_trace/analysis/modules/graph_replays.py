# SPDX-License-Identifier: Apache-2.0
"""Kernels that a CUDA graph replays, and the launch that tells what they are.

One call launches a whole graph, so around it lies no operator and no module of what runs inside. A
trace that also holds an iteration before the graphs were captured has each of these kernels again,
launched one by one:

    eager step      norm gemm gemm | norm gemm gemm | ...        launches in modules
    replaying step  [copy norm gemm gemm] [copy norm gemm gemm]  one call each

Both run the same kernels in the same order. A graph's kernels are looked for behind those of the
graph before, piece by piece, so that graphs of equal layers find their own layer; what is found
nowhere stays without a name. Streams of a graph overlap, so within it the order is that of starts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.categories import launches_graph

_PIECES = ((16, 512), (8, 256), (4, 128), (2, 32), (1, 4))
"""Lengths of pieces that are looked for, and how far: the shorter, the more places have it."""
_BYTES = 8


@dataclass(frozen=True, slots=True)
class NamingLaunches:
    """For each row of `Activity.gpu`, the launch whose place tells the module.

    Args:
        time, track: the row's own launch; for a replayed kernel that was found, the eager one.
        replayed: rows that a graph launched.
        found: those of them with an eager launch.
    """

    time: Ints
    track: Ints
    replayed: npt.NDArray[np.bool_]
    found: npt.NDArray[np.bool_]


def naming_launches(timeline: Timeline) -> NamingLaunches:
    """Where to look for the module of each row; see the module's docstring."""
    activity, launches = timeline.activity, timeline.launches
    time, track = launches.time, launches.track
    of_graph = activity.named(activity.calls, launches_graph)
    known = launches.call != NONE
    replayed = known.copy()
    replayed[known] = of_graph[launches.call[known]]
    found = np.zeros(len(time), dtype=bool)
    if not replayed.any() or replayed[known].all():
        return NamingLaunches(time, track, replayed, found)
    eager = _eager_step(timeline, known & ~replayed)
    twins = _twins(timeline, replayed, eager)
    found = twins != NONE
    time, track = time.copy(), track.copy()
    time[found], track[found] = launches.time[twins[found]], launches.track[twins[found]]
    return NamingLaunches(ints(time), ints(track), replayed, found)


def _eager_step(timeline: Timeline, eager: npt.NDArray[np.bool_]) -> Ints:
    """Rows that were launched one by one in the step with most of them, in this order."""
    rows = np.flatnonzero(eager)
    steps = timeline.step_of[rows]
    if (steps != NONE).any():
        rows = rows[steps == np.bincount(steps[steps != NONE]).argmax()]
    return ints(rows[np.argsort(timeline.launches.time[rows], kind="stable")])


def _twins(timeline: Timeline, replayed: npt.NDArray[np.bool_], eager: Ints) -> Ints:
    """For each row of gpu the eager row that it repeats, or NONE."""
    gpu, launches = timeline.activity.gpu, timeline.launches
    twins = np.full(len(gpu), NONE, dtype=np.int64)
    rows = np.flatnonzero(replayed)
    rows = rows[np.lexsort((gpu.start[rows], launches.call[rows], launches.time[rows]))]
    steps, calls = timeline.step_of[rows], launches.call[rows]
    edges = np.flatnonzero((np.diff(calls) != 0) | (np.diff(steps) != 0)) + 1
    sequence = _Sequence(gpu.name[eager])
    at, step = 0, None
    for block in np.split(rows, edges):
        if timeline.step_of[block[0]] != step:
            at, step = 0, timeline.step_of[block[0]]
        places, at = sequence.align(gpu.name[block], at)
        matched = places != NONE
        twins[block[matched]] = eager[places[matched]]
    return ints(twins)


class _Sequence:
    """Names of kernels in the order of their launches.

    Args:
        names: codes.
    """

    def __init__(self, names: Ints) -> None:
        self._names = np.ascontiguousarray(names, dtype=np.int64)
        self._bytes = self._names.tobytes()

    def align(self, block: Ints, begin: int) -> tuple[Ints, int]:
        """Where the names of a block are, from a place on; else from the start.

        Returns:
            For each the position, or NONE; and the position behind the last one.
        """
        block = np.ascontiguousarray(block, dtype=np.int64)
        places = np.full(len(block), NONE, dtype=np.int64)
        row, at, begun = 0, begin, False
        while row < len(block):
            place = self._find(block[row:], at, anywhere=not begun)
            if place is None:
                row += 1
                continue
            length = _common(block[row:], self._names[place:])
            places[row : row + length] = np.arange(place, place + length)
            row, at, begun = row + length, place + length, True
        return ints(places), at

    def _find(self, wanted: Ints, at: int, *, anywhere: bool) -> int | None:
        if at < len(self._names) and self._names[at] == wanted[0]:
            return at
        near = []
        for length, reach in _PIECES:
            piece = wanted[:length].tobytes()
            if length > len(wanted):
                continue
            place = self._search(piece, at, len(self._names) if anywhere else at + reach)
            if place is None and anywhere:
                place = self._search(piece, 0, at)
            if place is not None and anywhere:
                return place
            if place is not None:
                near.append(place)
        # Equal layers have the same long pieces; the kernel's own place is the nearest.
        return min(near, default=None)

    def _search(self, piece: bytes, begin: int, end: int) -> int | None:
        at = begin * _BYTES
        while True:
            at = self._bytes.find(piece, at, end * _BYTES)
            if at < 0:
                return None
            if at % _BYTES == 0:
                return at // _BYTES
            at += 1


def _common(one: Ints, other: Ints) -> int:
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length
