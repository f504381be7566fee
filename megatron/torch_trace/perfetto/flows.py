# SPDX-License-Identifier: Apache-2.0
"""Arrows: which slice each starts from and which one it leads to.

Kineto writes the two ends of an arrow as events of their own, which have the same id and belong to
the slice that begins there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.analysis.timeline.nesting import Nesting
from megatron.torch_trace.format.integer_arrays import Ints, distinct
from megatron.torch_trace.perfetto.events import RankEvents


@dataclass(frozen=True, slots=True)
class Ends:
    """Arrow ends by slice.

    Args:
        count: of each slice.
        first: index in `arrow` of the first one of each slice.
        arrow: numbers of arrows.
    """

    count: NDArray[np.int32]
    first: NDArray[np.int32]
    arrow: Ints

    @classmethod
    def of(cls, slices: Ints, total: int) -> Ends:
        count = np.bincount(slices, minlength=total).astype(np.int32)
        first = (np.cumsum(count) - count).astype(np.int32)
        return cls(count, first, np.argsort(slices, kind="stable"))


@dataclass(frozen=True, slots=True)
class Arrows:
    """Arrows of one rank, numbered from 0.

    Args:
        count: how many have both ends.
        begins, finishes: of each slice; an arrow finishes at or after its begin.
        lost: pairs of ends of which one is on no slice.
    """

    count: int
    begins: Ends
    finishes: Ends
    lost: int


def connect(
    found: RankEvents,
    of_arrows: Ints,
    track: Ints,
    ts: Ints,
    end: Ints,
    may_hold: NDArray[np.bool_],
) -> Arrows:
    """Pair the ends of arrows and find their slices.

    Args:
        of_arrows: the track of each end.
        track, ts, end: of all slices, sorted by track and start, longest first.
        may_hold: slices to which arrows can belong.
    """
    starts, finishes = _pairs(found.arrows)
    rows = np.flatnonzero(may_hold)
    index = _Index(track[rows], ts[rows], end[rows])
    arrows = found.arrows
    source = index.find(of_arrows[starts], arrows["start"][starts])
    target = index.find(of_arrows[finishes], arrows["start"][finishes])
    whole = (source >= 0) & (target >= 0)
    source, target = rows[source[whole]], rows[target[whole]]
    # Clocks of CPU and GPU differ by microseconds: what Perfetto sees first must begin the arrow.
    late = (ts[source] > ts[target]) | ((ts[source] == ts[target]) & (source > target))
    first, second = np.where(late, target, source), np.where(late, source, target)
    return Arrows(
        count=len(first),
        begins=Ends.of(first, len(ts)),
        finishes=Ends.of(second, len(ts)),
        lost=int((~whole).sum()),
    )


def _pairs(arrows: dict[str, NDArray[Any]]) -> tuple[Ints, Ints]:
    """Rows of starts and of the ends that have one; an arrow may end at several slices."""
    starts = np.flatnonzero(arrows["end"] == 0)
    ends = np.flatnonzero(arrows["end"] == 1)
    if not len(starts) or not len(ends):
        return starts[:0], ends[:0]
    order = np.lexsort((arrows["id"], arrows["category"]))
    category, number = arrows["category"][order], arrows["id"][order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (category[1:] != category[:-1]) | (number[1:] != number[:-1])
    same = np.empty(len(order), dtype=np.int64)
    same[order] = np.cumsum(new) - 1
    start_of = np.full(int(new.sum()), -1, dtype=np.int64)
    start_of[same[starts[::-1]]] = starts[::-1]
    start = start_of[same[ends]]
    return start[start >= 0], ends[start >= 0]


class _Index:
    """Slices by track and time."""

    def __init__(self, track: NDArray[Any], ts: Ints, end: Ints) -> None:
        self.track, self.ts, self.end = track, ts, end
        self._nesting: Nesting | None = None

    def find(self, track: NDArray[Any], time: Ints) -> Ints:
        """The slice that begins at `time`, else the innermost around it, else -1."""
        found = np.full(len(time), -1, dtype=np.int64)
        if not len(self.ts):
            return found
        bounds = np.searchsorted(self.track, [track, track + 1])
        for one in distinct(track).tolist():
            here = np.flatnonzero(track == one)
            low, high = int(bounds[0][here[0]]), int(bounds[1][here[0]])
            at = low + np.searchsorted(self.ts[low:high], time[here], side="right") - 1
            exact = at >= low
            exact[exact] = self.ts[at[exact]] == time[here[exact]]
            found[here[exact]] = at[exact]
        rest = found < 0
        if rest.any():
            if self._nesting is None:
                self._nesting = Nesting(self.ts, self.end, self.track.astype(np.int64))
            found[rest] = self._nesting.innermost(track[rest].astype(np.int64), time[rest])
        return found
