# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megatron.torch_trace.perfetto.order import Ints, lanes_of, order_of

SLICES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=12)


def columns(slices: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    ordered = sorted(slices, key=lambda one: (one[0], -one[1]))
    ts = np.array([start for start, _ in ordered], dtype=np.int64)
    return ts, ts + np.array([length for _, length in ordered], dtype=np.int64)


def played(ts: Ints, end: Ints) -> list[tuple[int, int]]:
    """What a reader with a stack makes of the order; times must not go back."""
    order = order_of(ts, end)
    assert order is not None
    stack: list[int] = []
    found = {}
    now = -1
    for position, is_end in zip(order.slice.tolist(), order.is_end.tolist(), strict=True):
        time = int(end[position] if is_end else ts[position])
        assert time >= now
        now = time
        if is_end:
            found[stack.pop()] = time
        else:
            stack.append(position)
    assert not stack
    return [(int(ts[position]), found[position]) for position in range(len(ts))]


@given(SLICES)
def test_slices_that_nest_come_back_as_they_were(slices: list[tuple[int, int]]) -> None:
    ts, end = columns(slices)
    pairs = list(zip(ts.tolist(), end.tolist(), strict=True))
    crossing = any(a < b < a_end < b_end for a, a_end in pairs for b, b_end in pairs)
    if crossing:
        assert order_of(ts, end) is None
    else:
        assert played(ts, end) == pairs


@given(SLICES)
def test_lanes_hold_every_slice_once_and_none_cross_on_them(slices: list[tuple[int, int]]) -> None:
    ts, end = columns(slices)
    lanes = lanes_of(ts, end)
    assert sorted(np.concatenate([lane.slices for lane in lanes]).tolist()) == list(range(len(ts)))
    for lane in lanes:
        own, own_end = ts[lane.slices], end[lane.slices]
        assert played(own, own_end) == list(zip(own.tolist(), own_end.tolist(), strict=True))


def test_an_end_stands_before_a_begin_of_the_same_time() -> None:
    order = order_of(*columns([(0, 10), (10, 5)]))
    assert order is not None
    assert order.slice.tolist() == [0, 0, 1, 1]
    assert order.is_end.tolist() == [False, True, False, True]


def test_a_slice_without_length_ends_before_anything_else_begins() -> None:
    order = order_of(*columns([(0, 10), (3, 0), (3, 0), (3, 2)]))
    assert order is not None
    # By start, the longest first: (0, 10), (3, 2), (3, 0), (3, 0).
    assert order.slice.tolist() == [0, 1, 2, 2, 3, 3, 1, 0]
