# SPDX-License-Identifier: Apache-2.0
"""Which times can be of a trace: damaged files hold events that are years away or last so long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.format.integer_arrays import Ints

_FAR = 20
_LEAST_WIDTH_NS = 60_000_000_000
_ENOUGH = 16
"""Events of which a single one can be said to be far from the others."""


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
        count = len(starts)
        if not count:
            return cls(0.0, 0.0)
        if count < _ENOUGH:
            low, middle, high = np.quantile(starts, [0.01, 0.5, 0.99])
        else:
            # At least one on either side is among the outermost. As np.quantile finds them, at once
            # and without numpy.ma, which it imports.
            first, last = math.ceil(0.01 * (count - 1)), math.floor(0.99 * (count - 1))
            middles = (count - 1) // 2, count // 2
            ordered = np.partition(starts, (first, *middles, last))
            low, high = ordered[first], ordered[last]
            below, above = (int(ordered[one]) for one in middles)
            middle = above - (above - below) * 0.5
        # Whole numbers of a damaged trace may be further apart than fits into 64 bits.
        return cls(middle, _FAR * max(float(high) - float(low), _LEAST_WIDTH_NS))

    def holds(self, ts: Ints, dur: Ints) -> NDArray[np.bool_]:
        """Which events are of this trace; a negative duration, which means none, is."""
        held: NDArray[np.bool_] = (np.abs(ts - self.middle) <= self.width) & (dur <= self.width)
        return held


_SAMPLE = 256
_SAMPLED = np.arange(_SAMPLE, dtype=np.float64)
"""As numpy's linspace makes them, in a fifth of the time."""


@dataclass(slots=True)
class BlockTimes:
    """What one block tells of when its slices are.

    Args:
        block: its offset.
        sample: starts, evenly picked from the sorted ones; all of them if they are few.
        count: how many there are.
        near: first start and last end of the slices that can only be far if the block is.
        doubtful: (ts, dur, index in the block) of the others, a row each.
    """

    block: int
    sample: Ints
    count: int
    near: tuple[int, int] | None
    doubtful: Ints

    @classmethod
    def of(cls, block: int, ts: Ints, dur: Ints, index: Ints) -> BlockTimes:
        """Of slices that have a start."""
        ordered = np.sort(ts)
        if len(ts) > _SAMPLE:
            positions = (_SAMPLED * ((len(ts) - 1) / (_SAMPLE - 1))).astype(np.int64)
            positions[-1] = len(ts) - 1
            sample = ordered[positions]
        else:
            sample = ordered
        least = _FAR * _LEAST_WIDTH_NS
        middle = int(ordered[len(ordered) // 2]) if len(ts) else 0
        near = (np.abs(ts - middle) <= least // 2) & (dur <= least)
        bounds = None
        if near.any():
            ends = ts[near] + np.maximum(dur[near], 0)
            bounds = (int(ts[near].min()), int(ends.max()))
        doubtful = np.stack([ts[~near], dur[~near], index[~near]], axis=1)
        return cls(block, sample, len(ts), bounds, doubtful)


@dataclass(slots=True)
class FarTimes:
    """Slices that cannot be of a trace, and where the others are.

    Args:
        away, long: how many start too far away, last too long.
        first_away, first_long: (block, index in it) of the first of each.
        span: first start and last end of the others; None if there are none.
    """

    away: int = 0
    long: int = 0
    first_away: tuple[int, int] | None = None
    first_long: tuple[int, int] | None = None
    span: tuple[int, int] | None = None


def far_times(blocks: Sequence[BlockTimes]) -> FarTimes:
    """What `Reach` says of slices that are looked at block by block."""
    found = FarTimes()
    reach = _reach(blocks)
    for block in blocks:
        near, ends = block.near, []
        if near and reach.holds(np.array(near), np.zeros(2, dtype=np.int64)).all():
            ends.append(near)
        elif near:
            # The block is far as a whole.
            found.away += block.count - len(block.doubtful)
            found.first_away = found.first_away or (block.block, 0)
        for ts, dur, index in block.doubtful.tolist():
            address = (block.block, index)
            if abs(ts - reach.middle) > reach.width:
                found.away += 1
                found.first_away = found.first_away or address
            elif dur > reach.width:
                found.long += 1
                found.first_long = found.first_long or address
            else:
                ends.append((ts, ts + max(dur, 0)))
        for low, high in ends:
            span = found.span or (low, high)
            found.span = (min(span[0], low), max(span[1], high))
    return found


def _reach(blocks: Sequence[BlockTimes]) -> Reach:
    """As of all starts; each of a sample stands for as many of its block."""
    if not blocks:
        return Reach(0.0, 0.0)
    starts = np.concatenate([block.sample for block in blocks])
    if len(starts) == sum(block.count for block in blocks):
        return Reach.of(starts)
    weight = np.concatenate(
        [np.full(len(b.sample), b.count / max(1, len(b.sample))) for b in blocks]
    )
    order = np.argsort(starts)
    below = np.cumsum(weight[order])
    low, middle, high = np.interp(np.array([0.01, 0.5, 0.99]) * below[-1], below, starts[order])
    return Reach(middle, _FAR * max(high - low, _LEAST_WIDTH_NS))
