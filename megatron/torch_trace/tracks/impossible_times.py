# SPDX-License-Identifier: Apache-2.0
"""Which times can be of a trace: damaged files hold events that are years away or last so long."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.tracks.lanes import Ints

_FAR = 20
_LEAST_WIDTH_NS = 60_000_000_000


class Reach(NamedTuple):
    """Times in ns that an event of a trace can have.

    Args:
        middle: the median start.
        width: most that a start may be away from it, or a duration be.
    """

    middle: float
    width: float

    @classmethod
    def of(cls, starts: Ints) -> Reach:
        """Twenty widths of the trace without its outermost hundredths; a minute at least is one."""
        if not len(starts):
            return cls(0.0, 0.0)
        low, middle, high = np.quantile(starts, [0.01, 0.5, 0.99])
        return cls(middle, _FAR * max(high - low, _LEAST_WIDTH_NS))

    def holds(self, ts: Ints, dur: Ints) -> NDArray[np.bool_]:
        """Which events are of this trace; a negative duration, which means none, is."""
        held: NDArray[np.bool_] = (np.abs(ts - self.middle) <= self.width) & (dur <= self.width)
        return held
