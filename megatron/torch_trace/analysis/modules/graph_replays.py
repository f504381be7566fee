# SPDX-License-Identifier: Apache-2.0
"""Kernels that a CUDA graph replays, and the launch that tells what they are.

One call launches a whole graph, so around it lies no operator and no module of what runs inside. A
trace that also holds an iteration before the graphs were captured has each of these kernels again,
launched one by one:

    eager step      norm gemm gemm | norm gemm gemm | ...        launches in modules
    replaying step  [copy norm gemm gemm] [copy norm gemm gemm]  one call each

Both run the same kernels in the same order. A graph's kernels are looked for behind those of the
graph before, piece by piece, so that graphs of equal layers find their own layer, and in each
micro-batch anew; what is found nowhere stays without a name. Streams of a graph overlap, so within
it the order is that of starts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.replayed import replayed_rows
from megatron.torch_trace.analysis.timeline.span_names import microbatch_span
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints, ints

_PIECES = (16, 8, 4)
"""Lengths of pieces that are looked for: what is shorter is in many places."""
_SLACK = 4
"""Launches that only one of the two has, at least."""
_BYTES = 8


@dataclass(frozen=True, slots=True)
class NamingLaunches:
    """For each row of `Activity.gpu`, the launch whose moment tells the module.

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
    launches = timeline.launches
    time, track = launches.time, launches.track
    known, replayed = launches.call != NONE, replayed_rows(timeline)
    found = np.zeros(len(time), dtype=bool)
    if not replayed.any() or replayed[known].all():
        return NamingLaunches(time, track, replayed, found)
    twins = _twins(timeline, replayed, _eager_step(timeline, known & ~replayed, replayed))
    found = twins != NONE
    time, track = time.copy(), track.copy()
    time[found], track[found] = launches.time[twins[found]], launches.track[twins[found]]
    return NamingLaunches(ints(time), ints(track), replayed, found)


_MOST = 4
"""A step with less than a quarter of the launches of another one is no whole step."""


def _eager_step(
    timeline: Timeline, eager: npt.NDArray[np.bool_], replayed: npt.NDArray[np.bool_]
) -> Ints:
    """Rows that were launched one by one in a step without replays, in this order.

    Of several the last: in the first one modules are still compiled and tuned. Where every step
    replays something, the one with most such rows.
    """
    rows = np.flatnonzero(eager)
    steps = timeline.step_of[rows]
    if (steps != NONE).any():
        counts = np.bincount(steps[steps != NONE])
        others = timeline.step_of[replayed]
        whole = _MOST * counts > counts.max()
        whole[others[(others != NONE) & (others < len(counts))]] = False
        chosen = np.flatnonzero(whole)[-1] if whole.any() else counts.argmax()
        rows = rows[steps == chosen]
    return ints(rows[np.argsort(timeline.launches.time[rows], kind="stable")])


_Pass = tuple[str, int | None, str | None] | None
"""Direction, virtual stage and model of a micro-batch; None outside of all."""


class _Twins:
    """Eager rows to look in: those of one micro-batch, where the trace tells of micro-batches.

    Of several the last: in the first ones modules are still compiled and tuned.

    Args:
        timeline: of one rank.
        eager: rows in the order of their launches.
    """

    def __init__(self, timeline: Timeline, eager: Ints) -> None:
        self._timeline = timeline
        chosen: dict[_Pass, list[int]] = {}
        last: dict[_Pass, int | None] = {}
        for row in eager.tolist():
            key, number = self.pass_of(row)
            if key is None:
                continue
            if last.get(key) != number:
                last[key], chosen[key] = number, []
            chosen[key].append(row)
        self._rows: dict[_Pass, Ints] = {None: eager}
        self._rows |= {key: ints(rows) for key, rows in chosen.items()}
        names = timeline.activity.gpu.name
        self._names = {key: _Sequence(names[rows]) for key, rows in self._rows.items()}

    def pass_of(self, row: int) -> tuple[_Pass, int | None]:
        """The micro-batch that launched a row: its pass, and its number."""
        timeline = self._timeline
        span = int(timeline.microbatch[row])
        if span == NONE:
            return None, None
        ops, names = timeline.activity.ops, timeline.activity.names
        micro_batch = microbatch_span(names[int(ops.name[span])])
        if micro_batch is None:
            return None, None
        key = (micro_batch.direction, micro_batch.chunk, micro_batch.model)
        return key, micro_batch.number

    def of(self, block: Ints, key: _Pass, at: int) -> tuple[Ints, int]:
        """The twins of a graph's rows, NONE where there is none, and where the next graph's are."""
        key = key if key in self._rows else None
        names = self._timeline.activity.gpu.name
        positions, at = self._names[key].align(names[block], at)
        return ints(np.where(positions != NONE, self._rows[key][positions], NONE)), at


def _twins(timeline: Timeline, replayed: npt.NDArray[np.bool_], eager: Ints) -> Ints:
    """For each row of gpu the eager row that it repeats, or NONE."""
    gpu, launches = timeline.activity.gpu, timeline.launches
    found = np.full(len(gpu), NONE, dtype=np.int64)
    rows = np.flatnonzero(replayed)
    rows = rows[np.lexsort((gpu.start[rows], launches.call[rows], launches.time[rows]))]
    steps, calls = timeline.step_of[rows], launches.call[rows]
    edges = np.flatnonzero((np.diff(calls) != 0) | (np.diff(steps) != 0)) + 1
    twins = _Twins(timeline, eager)
    at, before = 0, None
    for block in np.split(rows, edges):
        key, number = twins.pass_of(int(block[0]))
        now = (int(timeline.step_of[block[0]]), key, number)
        at, before = (at if now == before else 0), now
        found[block], at = twins.of(ints(block), key, at)
    return ints(found)


class _Sequence:
    """Names of kernels in the order of their launches.

    Args:
        names: codes.
    """

    def __init__(self, names: Ints) -> None:
        self._names = np.ascontiguousarray(names, dtype=np.int64)
        self._bytes = self._names.tobytes()

    def align(self, block: Ints, begin: int) -> tuple[Ints, int]:
        """Where the names of a block are, from a position on; else from the start.

        Returns:
            For each the position, or NONE; and the position behind the last one.
        """
        block = np.ascontiguousarray(block, dtype=np.int64)
        positions = np.full(len(block), NONE, dtype=np.int64)
        row, at, most = 0, begin, len(self._names)
        begun: int | None = None
        while row < len(block):
            wanted = block[row:]
            position = self._first(wanted, at) if begun is None else self._next(wanted, at, most)
            if position is None:
                row += 1
                continue
            if begun is None:
                begun = position - row
                # Eager launches of one graph are about as many as its kernels.
                most = min(most, begun + len(block) + max(_SLACK, len(block) // 8))
            length = _common(wanted, self._names[position:most])
            positions[row : row + length] = np.arange(position, position + length)
            row, at = row + length, position + length
        if begun is not None:
            self._match_rest(block, positions, max(begun, 0), most)
        return ints(positions), at

    def _first(self, wanted: Ints, at: int) -> int | None:
        for length in (*_PIECES, 1):
            if length <= len(wanted) or length == _PIECES[0]:
                piece = wanted[:length].tobytes()
                position = self._search(piece, at, len(self._names))
                position = self._search(piece, 0, at) if position is None else position
                if position is not None:
                    return position
        return None

    def _next(self, wanted: Ints, at: int, most: int) -> int | None:
        if at < most and self._names[at] == wanted[0]:
            return at
        # Equal layers have the same long pieces; the kernel's own position is the nearest.
        found = (
            self._search(wanted[:length].tobytes(), at, most)
            for length in _PIECES
            if length <= len(wanted)
        )
        return min((position for position in found if position is not None), default=None)

    def _match_rest(self, block: Ints, positions: Ints, begin: int, most: int) -> None:
        """What a graph runs at another moment than the eager launches, but among the same ones."""
        free = np.ones(most - begin, dtype=bool)
        inside = positions[(positions >= begin) & (positions < most)]
        free[inside - begin] = False
        for row in np.flatnonzero(positions == NONE).tolist():
            same = np.flatnonzero(free & (self._names[begin:most] == block[row]))
            if len(same):
                positions[row] = begin + same[0]
                free[same[0]] = False

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
