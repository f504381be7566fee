# SPDX-License-Identifier: Apache-2.0
"""In which order begins and ends of one track's slices must stand, and lanes where they can.

Perfetto knows no complete slices, only "something begins" and "the innermost one ends". Written in
the order in which a stack is filled and emptied, nested slices come back as they were:

    |--- A ---|--- C ---|        A( B( )B )A C( )C        an end stands before a begin of the
       |- B --|                                           same time, an inner end before an outer
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.format.integer_arrays import Ints
from megatron.torch_trace.tracks.lanes import LaneFinder


@dataclass(frozen=True, slots=True)
class Order:
    """Begins and ends of nested slices, in order.

    Args:
        slice: position of the slice.
        is_end: whether it ends here.
    """

    slice: Ints
    is_end: NDArray[np.bool_]


def order_of(ts: Ints, end: Ints) -> Order | None:
    """The order in which a stack takes slices; None if some cross.

    Args:
        ts, end: sorted by start, of the same start the longest first; half-open.
    """
    count = len(ts)
    own = np.arange(count)
    # The slice before whose begin each one has ended.
    before = np.maximum(np.searchsorted(ts, end, side="left"), own + 1)
    ends = np.lexsort((-own, before))
    # At each end, as many are open as there were at its begin, and itself: else they cross.
    ended = np.arange(count)
    begun = before[ends]
    open_at_begin = own - np.searchsorted(before[ends], own, side="right")
    if not (begun - ended == open_at_begin[ends] + 1).all():
        return None
    slices = np.empty(2 * count, dtype=np.int64)
    is_end = np.zeros(2 * count, dtype=bool)
    at_end = begun + ended
    is_end[at_end] = True
    slices[at_end] = ends
    slices[~is_end] = own
    times = np.where(is_end, end[slices], ts[slices])
    return Order(slices, is_end) if (np.diff(times) >= 0).all() else None


@dataclass(frozen=True, slots=True)
class Lane:
    """Slices that nest.

    Args:
        slices: of the slices among all that were given.
        order: of these slices.
    """

    slices: Ints
    order: Order


def lanes_of(ts: Ints, end: Ints) -> list[Lane]:
    """Slices on as many lanes as it takes for none to cross; arguments as for `order_of`."""
    whole = order_of(ts, end)
    if whole is not None:
        return [Lane(np.arange(len(ts)), whole)]
    number = np.zeros(len(ts), dtype=np.int64)
    for position, lane in LaneFinder().lanes(ts, end - ts).items():
        number[position] = lane
    lanes = []
    for lane in range(int(number.max()) + 1):
        slices = np.flatnonzero(number == lane)
        order = order_of(ts[slices], end[slices])
        assert order is not None, "a lane is made of slices that nest"
        lanes.append(Lane(slices, order))
    return lanes
