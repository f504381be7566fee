# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron.torch_trace.analysis.timeline.nesting import Nesting
from megatron.torch_trace.columns.intervals import ints

Range = tuple[int, int]


@st.composite
def nested(draw: st.DrawFn, low: int = 0, high: int = 60, depth: int = 0) -> list[Range]:
    """Ranges that nest properly, in no order."""
    ranges: list[Range] = []
    at = low
    while at < high - 1 and len(ranges) < 4:
        start = draw(st.integers(at, high - 1))
        end = draw(st.integers(start + 1, high))
        ranges.append((start, end))
        if depth < 3 and end - start > 2:
            ranges += draw(nested(start, end, depth + 1))
        at = end
    return ranges


def made(ranges: list[Range]) -> tuple[Nesting, list[Range]]:
    order = sorted(set(ranges), key=lambda r: (r[0], -r[1]))
    track = np.zeros(len(order), dtype=np.int64)
    return Nesting(ints([r[0] for r in order]), ints([r[1] for r in order]), track), order


@settings(deadline=None)
@given(nested())
def test_innermost_is_the_shortest_and_outermost_the_longest_range_that_holds_the_time(
    ranges: list[Range],
) -> None:
    nesting, order = made(ranges)
    times = ints(range(-1, 62))
    track = np.zeros(len(times), dtype=np.int64)
    inner, outer = nesting.innermost(track, times), nesting.outermost(track, times)
    for time, one, other in zip(times.tolist(), inner.tolist(), outer.tolist(), strict=True):
        holding = [r for r in order if r[0] <= time < r[1]]
        expected = min(holding, key=lambda r: r[1] - r[0], default=None)
        assert (order[one] if one >= 0 else None) == expected
        longest = max(holding, key=lambda r: r[1] - r[0], default=None)
        assert (order[other] if other >= 0 else None) == longest


def test_threads_do_not_enclose_each_other() -> None:
    nesting = Nesting(ints([0, 0]), ints([10, 10]), ints([1, 2]), ints([7, 8]))
    assert nesting.innermost(ints([1, 2, 3]), ints([5, 5, 5])).tolist() == [7, 8, -1]


ranges = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), min_size=1, max_size=12)


@settings(deadline=None)
@given(ranges)
def test_of_ranges_that_cross_the_last_and_the_first_to_begin_are_found(
    given_ranges: list[Range],
) -> None:
    nesting, order = made([(start, start + length) for start, length in given_ranges])
    times = ints(range(-1, 82))
    track = np.zeros(len(times), dtype=np.int64)
    inner, outer = nesting.innermost(track, times), nesting.outermost(track, times)
    for time, one, other in zip(times.tolist(), inner.tolist(), outer.tolist(), strict=True):
        holding = [n for n, (start, end) in enumerate(order) if start <= time < end]
        assert other == min(holding, default=-1)
        # Where depths are off another one than the last may be found, but always one that holds.
        assert (one in holding) if holding else one == -1


def test_a_range_that_crosses_another_is_still_found() -> None:
    # [0, 10) and [5, 15) cross; at 12 only the second is open.
    nesting = Nesting(ints([0, 5]), ints([10, 15]), ints([0, 0]))
    assert nesting.innermost(ints([0, 0, 0]), ints([3, 7, 12])).tolist() == [0, 1, 1]
