# SPDX-License-Identifier: Apache-2.0
"""Which rank is slow, by numbers of iterations on all ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from test_monitor import topology

from megatron.torch_profile.monitor.iterations.interval_line import Intervals
from megatron.torch_profile.monitor.iterations.judgement import Judge, SlowRank
from megatron.torch_profile.monitor.iterations.measured import Measured
from megatron.torch_profile.monitor.iterations.monitor import peers_of
from megatron.torch_profile.monitor.iterations.sampling import Sampling


class Job:
    """Iterations of 200 ms on ranks whose work varies by 1 ms; everybody waits for the slowest."""

    def __init__(
        self, ranks: int = 4, stages: int = 1, seed: int = 0, hiccups: float = 0.0, noise: float = 1
    ) -> None:
        self.noise = noise
        self.hiccups = hiccups
        self.random = random.Random(seed)
        self.ranks = ranks
        self.judge = Judge(peers_of(topology(0, stages=stages, ranks=ranks)), 2)
        self.sampling = Sampling()
        self.ended, self.was_disturbed = 0.0, False
        self.iteration = 0

    def run(
        self, iterations: int, slow: dict[int, float] | None = None, *, disturbed: bool = False
    ) -> Iterator[SlowRank]:
        for _ in range(iterations):
            self.iteration += 1
            own = [self.random.gauss(150, self.noise) for _ in range(self.ranks)]
            own = [ms + 60 * (self.random.random() < self.hiccups) for ms in own]
            for rank, more in (slow or {}).items():
                own[rank] += more
            total = max(own) + 50 + (500 if disturbed else 0)
            rows = {
                rank: Measured(self.iteration, disturbed, total, forward=ms, waiting=total - ms)
                for rank, ms in enumerate(own)
            }
            in_parts = self.sampling.in_parts(
                self.iteration, int(1e6 * self.ended), disturbed=self.was_disturbed
            )
            self.ended, self.was_disturbed = total, disturbed
            if not in_parts:
                rows = {
                    rank: Measured(self.iteration, disturbed, total, other=total, in_parts=False)
                    for rank in rows
                }
            yield from self.judge.slow_ranks(self.judge.judge(self.iteration, rows))


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("rank", range(4))
def test_a_slow_rank_is_named_with_its_part_within_three_iterations(rank: int, stages: int) -> None:
    for seed in range(5):
        job = Job(stages=stages, seed=seed)
        assert [*job.run(40)] == []
        (slow,) = job.run(3, {rank: 30})
        assert (slow.rank, slow.since, slow.iteration, slow.part) == (rank, 41, 43, "forward")
        assert 25 < slow.excess < 35
        assert [*job.run(50, {rank: 30})] == [], "it is said once"


def test_a_rank_that_is_slow_from_the_start_is_named() -> None:
    job = Job()
    named = {slow.rank for slow in job.run(20, {2: 40})}
    assert named == {2}


def test_no_alarm_in_2000_healthy_iterations_with_evaluation_and_checkpoints() -> None:
    for seed in range(5):
        job = Job(seed=seed)
        alarms = []
        for _ in range(40):
            alarms += job.run(49)
            alarms += job.run(1, {1: 300}, disturbed=True)
        assert alarms == []
        # Two iterations are no habit: a garbage collection, a file that comes late.
        assert [*job.run(2, {3: 100})] == []
        assert [*job.run(5)] == []


def test_a_rank_with_a_lead_that_was_named_is_named_again_when_it_is_much_slower_still() -> None:
    job = Job()
    named = [*job.run(60, {1: 15})]
    # By half an iteration it is not slower, and ten iterations tell how much ranks vary.
    assert [(slow.rank, slow.since) for slow in named] == [(1, 14)]
    (slow,) = job.run(3, {1: 75})
    assert (slow.rank, slow.iteration) in {(1, 62), (1, 63)}


def test_a_rank_that_is_slower_by_less_than_makes_an_iteration_slow_is_named_all_the_same() -> None:
    job = Job()
    assert [*job.run(40)] == []
    (slow,) = job.run(64, {2: 11})
    assert slow.rank == 2


def test_a_sleep_on_a_host_where_ranks_vary_much_is_named_in_20_of_20() -> None:
    job = Job(noise=4)
    assert [*job.run(30)] == []
    named = []
    for episode in range(20):
        named += [(slow.rank, slow.since) for slow in job.run(3, {episode % 4: 40})]
        named += [(slow.rank, slow.since) for slow in job.run(12)]
    assert named == [(episode % 4, 31 + 15 * episode) for episode in range(20)]


def test_hiccups_of_single_iterations_are_no_alarm() -> None:
    alarms = [slow for seed in range(5) for slow in Job(seed=seed, hiccups=0.02).run(2000)]
    assert len(alarms) <= 5, "one in 2,000 iterations"


def test_a_rank_without_peers_is_not_slow_before_its_past_has_told_how_much_it_varies() -> None:
    for seed in range(50):
        job = Job(ranks=2, stages=2, seed=seed)
        assert [*job.run(30)] == []


def test_numbers_of_an_interval_name_the_slowest_rank_its_part_and_its_node() -> None:
    job = Job()
    intervals = Intervals(10, ["node0", "node0", "node1", "node1"])
    lines = []
    for iteration in range(1, 21):
        own = {0: 10.0, 1: 10.0, 2: 10.0, 3: 16.0 if iteration > 10 else 10.0}
        rows = {
            rank: Measured(iteration, iteration == 5, 20.0, data=ms, waiting=20.0 - ms)
            for rank, ms in own.items()
        }
        lines.append(intervals.add(job.judge.judge(iteration, rows)))
    assert [i for i, line in enumerate(lines, 1) if line] == [10, 20]
    line = lines[19]
    assert line is not None
    expected = {
        "monitor/iteration": 20,
        "monitor/iteration_ms": 20.0,
        "monitor/drift_pct": 0.0,
        "monitor/iterations_in_parts": 10,
        "monitor/own_ms": 11.5,
        "monitor/waiting_ms": 8.5,
        "monitor/left_out_iterations": 0,
        "monitor/data_ms": 11.5,
        "monitor/slowest_rank": 3,
        "monitor/slowest_by_ms": 6.0,
        "monitor/slowest_by_ms/data": 6.0,
        "monitor/slowest_node_first_rank": 2,
        "monitor/slowest_node_by_ms": 3.0,
    }
    assert {key: value for key, value in line.items() if value or key in expected} == expected
    assert lines[9] is not None
    assert lines[9]["monitor/left_out_iterations"] == 4  # the first three, and a disturbed one
