# SPDX-License-Identifier: Apache-2.0
"""What a difference is, and when there are samples enough to test it."""

from __future__ import annotations

import pytest

from megatron.torch_trace.analysis.compare.statistics import (
    Difference,
    by_rank,
    correct,
    independent,
    paired,
)


@pytest.mark.parametrize(
    ("before", "after", "change", "relative"),
    [
        (4.0, 6.0, 2.0, 0.5),
        (6.0, 4.0, -2.0, -1 / 3),
        (0.0, 0.0, 0.0, 0.0),
        (0.0, 4.0, 4.0, None),
        (4.0, 0.0, -4.0, -1.0),
        (None, 4.0, None, None),
        (4.0, None, None, None),
    ],
)
def test_a_change_is_relative_to_what_was_before(
    before: float | None, after: float | None, change: float | None, relative: float | None
) -> None:
    found = Difference(before, after)
    assert (found.change, found.relative) == (change, relative)


@pytest.mark.parametrize(
    ("p", "significant"), [(None, None), (0.049, True), (0.05, False), (0.07, False)]
)
def test_noise_is_no_explanation_below_5_percent(p: float | None, significant: bool | None) -> None:
    assert Difference(1, 2, p=p).significant is significant


def test_samples_that_do_not_vary_tell_exactly() -> None:
    assert independent([2.0, 2.0], [5.0, 5.0], "steps") == Difference(
        2.0, 5.0, 3.0, 3.0, 0.0, "steps", (2, 2)
    )
    assert paired({0: 2.0, 1: 9.0}, {0: 2.0, 1: 9.0}) == Difference(
        5.5, 5.5, 0.0, 0.0, 1.0, "ranks, paired", (2, 2)
    )


def test_without_samples_enough_there_is_no_test() -> None:
    assert independent([2.0], [5.0], "steps") == Difference(2.0, 5.0, samples=(1, 1))
    assert independent([], [5.0, 7.0], "steps") == Difference(None, 6.0, samples=(0, 2))
    assert paired({3: 2.0}, {3: 5.0}) == Difference(2.0, 5.0, samples=(1, 1))


def test_the_interval_lies_around_the_change() -> None:
    # Differences 1, 2, 3: 4.303 times sqrt(1 / 3) to both sides.
    found = paired({0: 1, 1: 10, 2: 5}, {0: 2, 1: 12, 2: 8})
    assert (found.low, found.high) == (
        pytest.approx(-0.484, abs=1e-3),
        pytest.approx(4.484, abs=1e-3),
    )
    # Student's t with two samples against one: 12.706 times sqrt(2 * 1.5).
    alone = independent([9], [1, 3], "steps")
    assert (alone.low, alone.high) == (
        pytest.approx(-7 - 22.007, abs=1e-2), pytest.approx(-7 + 22.007, abs=1e-2),
    )  # fmt: skip


def test_as_many_ranks_that_are_others_are_no_pairs() -> None:
    assert by_rank({0: 1.0, 1: 2.0}, {0: 1.0, 2: 2.0}).over == "ranks"
    assert by_rank({0: 1.0, 1: 2.0}, {1: 2.0, 0: 1.0}).over == "ranks, paired"


def test_the_stricter_chances_keep_the_order_and_are_at_most_1() -> None:
    rows = [Difference(1, 2, p=p) for p in (0.5, 0.02, 0.02, 0.6)]
    assert [row.p for row in correct(rows)] == [1.0, 0.08, 0.08, 1.0]
