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
        # Cut this set at every edge of the other; keep the pieces that the other does not cover.
        cuts = np.sort(np.concatenate((self.starts, self.ends, other.starts, other.ends)))
        starts, ends = cuts[:-1], cuts[1:]
        keep = self.holds(starts) & ~other.holds(starts)
        return Intervals.of(starts[keep], ends[keep])

    def intersect(self, other: Intervals) -> Intervals:
        if not len(self) or not len(other):
            return Intervals.empty()
        cuts = np.sort(np.concatenate((self.starts, self.ends, other.starts, other.ends)))
        starts, ends = cuts[:-1], cuts[1:]
        keep = self.holds(starts) & other.holds(starts)
        return Intervals.of(starts[keep], ends[keep])

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
