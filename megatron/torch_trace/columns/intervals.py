# SPDX-License-Identifier: Apache-2.0
"""Sets of half-open intervals on integer nanoseconds: exact unions, differences, coverage.

busy = Intervals.of([0, 5, 30], [10, 15, 40])     [0, 15) and [30, 40)
busy.total                                        25
busy.minus(Intervals.of([12], [35])).total        17 = [0, 12) and [35, 40)
busy.covered([0, 10], [20, 32])                   [15, 7]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.format.integer_arrays import Ints as Ints
from megatron.torch_trace.format.integer_arrays import ints as ints

_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Intervals:
    """Disjoint, ascending, not empty, not touching: make one with `of`.

    Args:
        starts, ends: int64 arrays of the same length, in ns; `ends` is exclusive.
    """

    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
        """The union of intervals in any order; an empty or reversed one counts for nothing."""
        start, end = ints(starts), ints(ends)
        keep = end > start
        if not keep.all():
            start, end = start[keep], end[keep]
        if not len(start):
            return cls(start, end)
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            start, end = start[order], end[order]
        reach = np.maximum.accumulate(end)
        # A new interval begins where all before have ended, with a gap between.
        first = np.empty(len(start), dtype=bool)
        first[0] = True
        np.greater(start[1:], reach[:-1], out=first[1:])
        last = np.append(np.flatnonzero(first)[1:] - 1, len(start) - 1)
        return cls(start[first], reach[last])

    @classmethod
    def empty(cls) -> Intervals:
        return cls(ints([]), ints([]))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def total(self) -> int:
        """Sum of the lengths, ns."""
        return int((self.ends - self.starts).sum())

    def clip(self, start: int, end: int) -> Intervals:
        """What lies in [start, end)."""
        return Intervals.of(np.maximum(self.starts, start), np.minimum(self.ends, end))

    def union(self, other: Intervals) -> Intervals:
        return Intervals.of(
            np.concatenate((self.starts, other.starts)), np.concatenate((self.ends, other.ends))
        )

    def minus(self, other: Intervals) -> Intervals:
        """What is in this set and not in `other`."""
        if not len(self) or not len(other):
            return self
        between = Intervals(
            np.concatenate(([_EARLIEST], other.ends)), np.concatenate((other.starts, [_LATEST]))
        )
        return self.intersect(between)

    def intersect(self, other: Intervals) -> Intervals:
        if not len(self) or not len(other):
            return Intervals.empty()
        # What both have begins with an interval of one in the middle of one of the other, or with
        # both. No two of these pieces touch: where one set has ended it does not begin at once.
        mine, ends = _cut(self, other, np.searchsorted(other.starts, self.starts, side="right"))
        theirs, more = _cut(other, self, np.searchsorted(self.starts, other.starts, side="left"))
        starts = np.concatenate((mine, theirs))
        order = np.argsort(starts, kind="stable")
        return Intervals(starts[order], np.concatenate((ends, more))[order])

    def gaps(self, start: int, end: int) -> Intervals:
        """What of [start, end) is not in this set."""
        return Intervals.of([start], [end]).minus(self)

    def holds(self, times: Ints) -> npt.NDArray[np.bool_]:
        """Which of `times` lie in this set."""
        index = np.searchsorted(self.starts, times, side="right") - 1
        inside: npt.NDArray[np.bool_] = index >= 0
        inside[inside] = times[inside] < self.ends[index[inside]]
        return inside

    def before(self, times: npt.ArrayLike) -> Ints:
        """How many ns of this set lie before each of `times`."""
        at = ints(times)
        if not len(self):
            return np.zeros(at.shape, dtype=np.int64)
        lengths = np.concatenate(([0], np.cumsum(self.ends - self.starts)))
        index = np.searchsorted(self.starts, at, side="right")
        inner = np.minimum(at, self.ends[index - 1]) - self.starts[index - 1]
        return ints(np.where(index > 0, lengths[index - 1] + inner, 0))

    def covered(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Ints:
        """How many ns of this set lie in each [start, end); 0 where end <= start."""
        start = ints(starts)
        return self.before(np.maximum(start, ints(ends))) - self.before(start)


def _cut(some: Intervals, others: Intervals, behind: npt.NDArray[np.intp]) -> tuple[Ints, Ints]:
    """The beginnings of `some` that lie within one of `others`, and how far both go from there.

    Args:
        behind: how many of `others` begin before each of `some`.
    """
    until = others.ends[behind - 1]
    inside = (behind > 0) & (some.starts < until)
    return some.starts[inside], np.minimum(some.ends, until)[inside]
