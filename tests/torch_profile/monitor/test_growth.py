# SPDX-License-Identifier: Apache-2.0
"""A rank whose memory grows from iteration to iteration is named; what comes and goes is not."""

from __future__ import annotations

from collections.abc import Callable

from megatron.torch_profile.monitor.iterations.growth import Growing, Growth
from megatron.torch_profile.monitor.iterations.judgement import Judge
from megatron.torch_profile.monitor.iterations.measured import Measured


def named(iterations: int, *ranks: Callable[[int], float]) -> list[Growing]:
    """Who is named, if ranks hold so many MB after an iteration."""
    judge, growth = Judge([[*range(len(ranks))]] * len(ranks)), Growth()
    found = []
    for at in range(1, iterations + 1):
        rows = {n: Measured(at, False, 1.0, resident=mb(at)) for n, mb in enumerate(ranks)}
        found += growth.add(judge.judge(at, rows))
    return found


def flat(iteration: int) -> float:
    """1 GB, and 300 MB for a window in every 40th iteration."""
    return 1000.0 + (iteration % 7) + 300.0 * (iteration % 40 == 0)


def test_a_rank_that_leaks_is_named_with_what_an_iteration_takes() -> None:
    assert named(700, flat, lambda at: flat(at) + max(0, at - 300)) == [
        Growing(1, 301, 450, 1001.0, 1127.0, 1.008),
    ]


def test_it_is_named_again_when_it_holds_half_as_much_more() -> None:
    found = named(1400, lambda at: flat(at) + at)
    assert [(one.iteration, one.now) for one in found] == [(200, 1177.0), (800, 1777.0)]


def test_a_slow_leak_is_named_after_longer() -> None:
    (one,) = named(3000, lambda at: flat(at) + 0.1 * at, flat)
    assert (one.rank, one.iteration < 2000) == (0, True)
    assert abs(one.each - 0.1) < 0.01


def test_memory_that_settles_comes_and_goes_or_grows_once_is_no_leak() -> None:
    def settles(at: int) -> float:
        return flat(at) + 800 * (1 - 0.98**at)

    def once(at: int) -> float:
        return flat(at) + 500 * (at > 200)

    def in_waves(at: int) -> float:
        return flat(at) + at % 100

    assert named(3000, settles, once, in_waves) == []


def test_where_a_system_tells_no_memory_nobody_is_named() -> None:
    assert named(600, lambda at: 0.0) == []


def leaks(iteration: int) -> float:
    return flat(iteration) + max(0, iteration - 300)


def test_an_iteration_without_a_number_is_no_iteration_without_memory() -> None:
    known = named(700, leaks)
    assert named(700, lambda at: 0.0 if at == 350 else leaks(at)) == known


def test_across_a_stretch_without_numbers_nothing_is_known_to_grow() -> None:
    (one,) = named(600, lambda at: 0.0 if 350 < at <= 375 else leaks(at))
    assert (one.since, one.iteration) == (376, 525)


def test_of_much_memory_little_growth_is_no_leak() -> None:
    assert named(600, lambda at: 20_000.0 + at) == []
