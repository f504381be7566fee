# SPDX-License-Identifier: Apache-2.0
"""Times in a few numbers, and when a ratio is called sure."""

from __future__ import annotations

import pytest

from megatron.torch_profile.component.measure.clocks import HostClock
from megatron.torch_profile.component.measure.samples import Ratio, Summary, ratio


class Sleeper:
    """A step that takes as long as its list says, on a clock of its own."""

    def __init__(self, times: list[int]) -> None:
        self.now = 1000
        self._times = iter(times)

    def clock(self) -> int:
        return self.now

    def prepare(self) -> None:
        self.now += 777  # is not measured

    def __call__(self) -> None:
        self.now += next(self._times)

    def check_shapes(self) -> None:
        self.now += 333  # neither is this


def test_the_clock_measures_the_step_and_nothing_beside_it() -> None:
    steps = Sleeper([10, 30, 20])
    assert HostClock(steps.clock).times(steps, 3) == [10, 30, 20]


def test_a_summary_has_quantiles_and_the_spread_between_them() -> None:
    found = Summary.of(range(0, 1010, 10))
    assert (found.steps, found.least, found.median, found.most) == (101, 0, 500, 1000)
    assert (found.p10, found.p25, found.p75, found.p90, found.p99) == (100, 250, 750, 900, 990)
    assert found.spread == pytest.approx(1.6)


def test_twice_the_time_is_a_ratio_of_two_and_sure() -> None:
    base = [100, 101, 99, 100, 102, 98, 100, 101, 99, 100]
    found = ratio([2 * one for one in base], base)
    assert found is not None
    assert found.value == 2
    assert found.low is not None
    assert 1.9 < found.low < 2 < (found.high or 0) < 2.1
    assert found.sure is True
    assert found.surely_above(1.9)
    assert not found.surely_above(2.0)


def test_a_difference_within_noise_is_not_sure() -> None:
    found = ratio([100, 130, 90, 110, 105, 95], [100, 125, 92, 108, 104, 97])
    assert found is not None
    assert found.sure is False
    assert not found.surely_above(1.0)


def test_a_difference_that_the_drift_of_the_baseline_explains_is_not_beyond_it() -> None:
    faster = Ratio(0.05, 0.03, 0.3)
    assert faster.surely_beyond(1.0)
    assert not faster.surely_beyond(0.05)
    slower = Ratio(2.0, 1.8, 2.2)
    assert slower.surely_beyond(1.5)
    assert not slower.surely_beyond(1.9)


def test_two_steps_of_one_time_each_tell_a_ratio_that_is_exact() -> None:
    assert ratio([200, 200], [100, 100]) == Ratio(2.0, pytest.approx(2.0), pytest.approx(2.0))


def test_one_step_that_is_disturbed_moves_neither_median_nor_verdict() -> None:
    base = [100, 101, 99] * 10
    disturbed = [*base[:-1], 100_000]
    found = ratio(disturbed, base)
    assert found is not None
    assert found.value == 1
    assert found.sure is False
