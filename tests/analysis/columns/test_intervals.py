# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from megatron.torch_trace.columns.intervals import Intervals, ints

spans = st.lists(st.tuples(st.integers(-40, 40), st.integers(-5, 20)), max_size=12)


def points(pairs: list[tuple[int, int]]) -> set[int]:
    """Every integer time that one of the intervals holds: the definition, by brute force."""
    return {t for start, length in pairs for t in range(start, start + length)}


def made(pairs: list[tuple[int, int]]) -> Intervals:
    return Intervals.of([s for s, _ in pairs], [s + n for s, n in pairs])


def held(intervals: Intervals) -> set[int]:
    pairs = zip(intervals.starts.tolist(), intervals.ends.tolist(), strict=True)
    return {t for start, end in pairs for t in range(start, end)}


@settings(deadline=None)
@given(spans)
def test_a_union_holds_exactly_the_times_of_its_intervals(pairs: list[tuple[int, int]]) -> None:
    union = made(pairs)
    assert held(union) == points(pairs)
    assert union.total == len(points(pairs))


@settings(deadline=None)
@given(spans)
def test_a_union_is_sorted_disjoint_and_without_touching_neighbours(
    pairs: list[tuple[int, int]],
) -> None:
    union = made(pairs)
    assert (union.ends > union.starts).all()
    assert (union.starts[1:] > union.ends[:-1]).all()


@settings(deadline=None)
@given(spans, spans)
def test_difference_intersection_and_union_are_those_of_sets(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    a, b = made(one), made(other)
    assert held(a.minus(b)) == points(one) - points(other)
    assert held(a.intersect(b)) == points(one) & points(other)
    assert held(a.union(b)) == points(one) | points(other)


@settings(deadline=None)
@given(spans, st.integers(-45, 45), st.integers(0, 30))
def test_what_is_covered_clipped_or_a_gap_is_counted_by_the_point(
    pairs: list[tuple[int, int]], start: int, length: int
) -> None:
    union, end = made(pairs), start + length
    inside = {t for t in points(pairs) if start <= t < end}
    assert union.covered([start], [end]).tolist() == [len(inside)]
    assert held(union.clip(start, end)) == inside
    assert held(union.gaps(start, end)) == set(range(start, end)) - inside


def test_times_are_exact_where_a_float_would_not_be() -> None:
    base = 1_790_857_026_000_000_001
    union = Intervals.of([base, base + 1], [base + 2, base + 3])
    assert union.total == 3
    assert union.covered([base + 1], [base + 3]).tolist() == [2]


def test_nothing_is_a_set_too() -> None:
    nothing = Intervals.of([], [])
    assert (nothing.total, len(nothing.minus(nothing)), len(nothing.gaps(3, 5))) == (0, 0, 1)
    assert nothing.covered([0, 7], [5, 9]).tolist() == [0, 0]


def test_a_set_holds_the_times_from_a_start_on_and_none_from_its_end_on() -> None:
    some = Intervals.of([0, 20, 40], [10, 30, 50])
    times = ints([-1, 0, 9, 10, 19, 20, 29, 30, 45, 50, 99])
    assert some.holds(times).tolist() == [time in (0, 9, 20, 29, 45) for time in times.tolist()]
