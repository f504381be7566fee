# SPDX-License-Identifier: Apache-2.0
"""What a judge compares ranks with, and when it names a slow rank again."""

from __future__ import annotations

import math
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron.torch_profile.monitor.iterations.judgement import Judge
from megatron.torch_profile.monitor.iterations.measured import Measured

LEARNING = [0.0] * 15
"""Iterations of 200 ms in which nobody is slow: a rank is slow from 10 ms on, a twentieth."""


def named(*excess: float) -> list[int]:
    """At which of these iterations rank 3 of 4 is named, if its forward is so many ms longer."""
    judge = Judge([[0, 1, 2, 3]] * 4, in_a_row=2)
    found = []
    for iteration, more in enumerate([*LEARNING, *excess], 1):
        own = [100.0, 100.0, 100.0, 100.0 + more]
        rows = {
            rank: Measured(iteration, False, 200.0, forward=ms, waiting=200.0 - ms)
            for rank, ms in enumerate(own)
        }
        slow = judge.slow_ranks(judge.judge(iteration, rows))
        assert {one.rank for one in slow} <= {3}
        found += [iteration - len(LEARNING) for _ in slow]
    return found


@pytest.mark.parametrize(
    ("excess", "expected"),
    [
        pytest.param([30, 30, 30, 30], [2], id="it stays slow"),
        pytest.param([30, 30, 0, 0, 30, 30], [2, 6], id="it was fast"),
        pytest.param([30, 30, 0, 30, 0, 30, 30], [2], id="it was fast in single iterations"),
        pytest.param([30, 30, 7, 7, 7, 30, 30], [2], id="it was a little slow"),
        pytest.param([30, 30, 60, 60], [2, 4], id="it is far slower"),
        pytest.param([30, 30, 90, 30, 30], [2], id="one iteration was far slower"),
    ],
)
def test_it_is_named_again_for_a_reason(excess: list[float], expected: list[int]) -> None:
    assert named(*excess) == expected


@given(st.lists(st.integers(0, 5), min_size=2, max_size=8))
def test_a_rank_is_compared_with_the_median_of_the_others(forward: list[int]) -> None:
    ranks = range(len(forward))
    judge = Judge([[*ranks]] * len(forward))
    rows = {rank: Measured(1, False, 200.0, forward=float(forward[rank])) for rank in ranks}
    assert judge.judge(1, rows).excess == {
        rank: forward[rank] - median(forward[:rank] + forward[rank + 1 :]) for rank in ranks
    }


def test_a_rank_without_peers_is_compared_with_its_past_once_that_is_ten_iterations() -> None:
    judge = Judge([[0]])
    found = [
        judge.judge(at, {0: Measured(at, False, 200.0, forward=100.0 + at)}).excess[0]
        for at in range(1, 15)
    ]
    # The first three iterations of a process are no past.
    assert [math.isnan(excess) for excess in found] == [True] * 13 + [False]
    assert found[-1] == 114.0 - (100 + median(range(4, 14)))


def test_iterations_that_are_not_measured_in_parts_tell_how_long_one_usually_is() -> None:
    judge = Judge([[0, 1]] * 2)
    for at in range(1, 10):
        whole = Measured(at, False, 100.0 * at, other=100.0 * at, in_parts=False)
        judge.judge(at, {0: whole, 1: whole})
    # The first three iterations of a process are no past.
    assert judge.typical == median(100.0 * at for at in range(4, 10))


@pytest.mark.parametrize(("peers", "knows"), [(8, True), (9, False)])
def test_the_past_of_ranks_with_many_peers_is_not_kept(peers: int, knows: bool) -> None:
    """Of thousands of ranks it is hundreds of MB; not all of them stop sending at once."""
    judge = Judge([[*range(peers)]] * peers)
    for at in range(1, 20):
        judge.judge(at, {rank: Measured(at, False, 200.0, forward=100.0) for rank in range(peers)})
    alone = judge.judge(20, {3: Measured(20, False, 200.0, forward=110.0)})
    assert (alone.excess[3] == 10.0) is knows
    assert math.isnan(alone.excess[3]) is not knows
