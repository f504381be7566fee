# SPDX-License-Identifier: Apache-2.0
"""Which of many nested ranges encloses a point in time, for a hundred thousand points at once.

forward   [------------------------)
linear       [--------)  [-----)            depth 2
addmm          [----)      [--)             depth 3
                  ^ here three have begun more than have ended: the innermost is at depth 3,
                    and it is the last one at that depth to have begun

Times in whole microseconds make ranges cross a little. Then depths are off, and the last one to
have begun that still goes on is looked for one by one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.timeline.code_columns import present
from megatron.torch_trace.columns.intervals import Ints, ints

_MOST_STEPS = 256
"""So far back a range is looked for one by one."""


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
        """Row of the last range to begin on `track` that holds `time`; -1 if there is none."""
        return self._find(track, time, outermost=False)

    def outermost(self, track: Ints, time: Ints) -> Ints:
        """Row of the first range to begin on `track` that holds `time`; -1 if there is none."""
        return self._find(track, time, outermost=True)

    def _find(self, track: Ints, time: Ints, *, outermost: bool) -> Ints:
        found = np.full(len(time), -1, dtype=np.int64)
        for one, ranges in self._tracks.items():
            here = track == one
            if here.any():
                find = ranges.outermost if outermost else ranges.innermost
                found[here] = find(time[here])
        return found


class _Track:
    def __init__(self, start: Ints, end: Ints, rows: Ints) -> None:
        self.start, self.end, self.rows = start, end, rows.astype(np.int32)
        self.ends = np.sort(end, kind="stable")
        depth = np.arange(1, len(start) + 1) - np.searchsorted(self.ends, start, side="right")
        self.origin = int(start[0])
        # One ascending key for (depth, start), so that a single search finds both.
        self.stride = int(start[-1]) - self.origin + 2
        key = depth * self.stride + (start - self.origin)
        self.order = np.argsort(key, kind="stable").astype(np.int32)
        self.key = key[self.order]

    def innermost(self, time: Ints) -> Ints:
        begun = np.searchsorted(self.start, time, side="right")
        depth = begun - np.searchsorted(self.ends, time, side="right")
        found = np.full(len(time), -1, dtype=np.int64)
        open_ = np.flatnonzero(depth > 0)
        offset = np.clip(time[open_] - self.origin, 0, self.stride - 1)
        at = np.searchsorted(self.key, depth[open_] * self.stride + offset, side="right")
        candidate = ints(self.order[np.maximum(at - 1, 0)])
        holds = (at > 0) & self._holds(candidate, time[open_])
        found[open_[holds]] = self.rows[candidate[holds]]
        open_ = open_[~holds]
        candidate = begun[open_] - 1
        for _ in range(_MOST_STEPS):
            if not len(open_):
                break
            holds = self._holds(candidate, time[open_])
            found[open_[holds]] = self.rows[candidate[holds]]
            open_, candidate = open_[~holds], np.maximum(candidate[~holds] - 1, 0)
        return found

    def outermost(self, time: Ints) -> Ints:
        begun = np.searchsorted(self.start, time, side="right")
        # Where the latest end so far first lies behind `time`, it is that range's own end.
        at = np.searchsorted(np.maximum.accumulate(self.end), time, side="right")
        known = at < begun
        return np.where(known, self.rows[np.where(known, at, 0)], -1).astype(np.int64)

    def _holds(self, ranges: Ints, time: Ints) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = self.start[ranges] <= time
        return found & (self.end[ranges] > time)
