# SPDX-License-Identifier: Apache-2.0
"""Which of many nested ranges encloses a point in time, for a hundred thousand points at once.

forward   [------------------------)
linear       [--------)  [-----)            depth 2
addmm          [----)      [--)             depth 3
                  ^ here three have begun more than have ended: the innermost is at depth 3,
                    and it is the last one at that depth to have begun
"""

from __future__ import annotations

import numpy as np

from megatron.torch_trace.analysis.codes import present
from megatron.torch_trace.analysis.intervals import Ints

_AROUND = (0, 1, 2, -1, -2)
"""Depths to look at, relative to the expected one; only where ranges cross is the first not it."""


class Nesting:
    """Ranges that nest on each track.

    Args:
        start, end, track: int64 arrays; sorted by start, of equal starts the longer first.
        rows: what `innermost` and `outermost` shall answer with; default the position.
    """

    def __init__(self, start: Ints, end: Ints, track: Ints, rows: Ints | None = None) -> None:
        rows = np.arange(len(start)) if rows is None else rows
        self._tracks = {}
        for one in present(track):
            here = np.flatnonzero(track == one)
            self._tracks[one] = _Track(start[here], end[here], rows[here])

    def innermost(self, track: Ints, time: Ints) -> Ints:
        """Row of the shortest range on `track` that holds `time`; -1 if there is none."""
        return self._find(track, time, outermost=False)

    def outermost(self, track: Ints, time: Ints) -> Ints:
        """Row of the longest range on `track` that holds `time`; -1 if there is none."""
        return self._find(track, time, outermost=True)

    def _find(self, track: Ints, time: Ints, *, outermost: bool) -> Ints:
        found = np.full(len(time), -1, dtype=np.int64)
        for one, ranges in self._tracks.items():
            here = track == one
            if here.any():
                found[here] = ranges.find(time[here], outermost)
        return found


class _Track:
    def __init__(self, start: Ints, end: Ints, rows: Ints) -> None:
        self.start, self.end, self.rows = start, end, rows.astype(np.int32)
        self.ends = np.sort(end)
        depth = np.arange(1, len(start) + 1) - np.searchsorted(self.ends, start, side="right")
        self.origin = int(start[0])
        # One ascending key for (depth, start), so that a single search finds both.
        self.stride = int(start[-1]) - self.origin + 2
        key = depth * self.stride + (start - self.origin)
        self.order = np.argsort(key, kind="stable").astype(np.int32)
        self.key = key[self.order]

    def find(self, time: Ints, outermost: bool) -> Ints:
        begun = np.searchsorted(self.start, time, side="right")
        deepest = begun - np.searchsorted(self.ends, time, side="right")
        depth = np.minimum(deepest, 1) if outermost else deepest
        found = np.full(len(time), -1, dtype=np.int64)
        offset = np.clip(time - self.origin, 0, self.stride - 1)
        open_ = np.flatnonzero(depth > 0)
        for more in _AROUND:
            if not len(open_):
                break
            key = np.maximum(depth[open_] + more, 0) * self.stride + offset[open_]
            at = np.searchsorted(self.key, key, side="right")
            candidate = self.order[np.maximum(at - 1, 0)]
            holds = (at > 0) & (self.start[candidate] <= time[open_])
            holds &= self.end[candidate] > time[open_]
            found[open_[holds]] = self.rows[candidate[holds]]
            open_ = open_[~holds]
        return found
