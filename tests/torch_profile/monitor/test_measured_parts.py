# SPDX-License-Identifier: Apache-2.0
"""Parts of an iteration that do not end in order, the last iteration, and ranks that are late."""

from __future__ import annotations

import pytest
from test_monitor import Marks, topology

from megatron.torch_profile.monitor.channel import OneProcess
from megatron.torch_profile.monitor.iterations import monitor as monitor_module
from megatron.torch_profile.monitor.iterations.interval_line import Intervals
from megatron.torch_profile.monitor.iterations.judgement import Judge
from megatron.torch_profile.monitor.iterations.measured import Measured
from megatron.torch_profile.monitor.iterations.monitor import Monitor
from megatron.torch_profile.monitor.iterations.parts import PAUSE
from megatron.torch_profile.monitor.iterations.phase_clock import PhaseClock


def test_what_is_open_inside_a_part_ends_with_it() -> None:
    marks = Marks()
    clock = PhaseClock(marks)
    clock.begin_step(1)
    clock.begin("forward")
    marks.now += 1
    clock.begin("waiting")  # its end is not called, as after an exception
    marks.now += 2
    clock.end("forward")
    marks.now += 4
    clock.begin_step(2)
    assert clock.read() == [Measured(1, False, 7, forward=1, waiting=2, other=4)]


def test_a_pause_is_taken_from_an_iteration_that_is_not_measured_in_parts() -> None:
    marks = Marks()
    clock = PhaseClock(marks)
    clock.begin_step(1, in_parts=False)
    clock.begin("forward")
    marks.now += 1
    clock.begin(PAUSE)
    marks.now += 50
    clock.end(PAUSE)
    clock.begin_step(2)
    assert clock.read() == [Measured(1, False, 1, other=1, in_parts=False)]


def test_the_last_iteration_is_no_ordinary_one() -> None:
    marks = Marks()
    clock = PhaseClock(marks)
    clock.begin_step(1)
    marks.now += 5
    clock.close()
    assert clock.read() == [Measured(1, True, 5, other=5)]


def test_iterations_that_were_judged_without_a_late_rank_are_not_judged_again() -> None:
    channel = OneProcess()
    ranks = [
        (clock := PhaseClock(Marks()), Monitor(clock, topology(rank, ranks=2), channel, 10))
        for rank in (0, 1)
    ]
    judged: list[int] = []
    ranks[0][1].judged.append(lambda one, judge: judged.append(one.iteration))
    for iteration in range(1, 101):
        for clock, _ in ranks:
            clock.begin_step(iteration)
            clock._marks.now += 20.0
        ranks[0][1].look()
    assert judged == [*range(1, 35)], "those 65 iterations ago, without rank 1"
    ranks[1][1].look()
    ranks[0][1].look()
    assert judged == [*range(1, 65)], "and all that rank 1 has measured"


def test_of_slow_ranks_no_more_is_said_than_anybody_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(monitor_module, "_MOST_LINES", 1)
    channel = OneProcess()
    ranks = [
        (clock := PhaseClock(Marks()), Monitor(clock, topology(rank, ranks=4), channel, 10))
        for rank in range(4)
    ]
    for iteration in range(1, 61):
        for rank, (clock, monitor) in enumerate(ranks):
            clock.begin_step(iteration)
            slow = rank == (1 if iteration < 40 else 2) and iteration > 20
            clock._marks.now += 40.0 if slow else 20.0
            clock.begin("waiting")
            clock._marks.now += 0.0 if slow else 20.0
            clock.end("waiting")
            monitor.look()
    assert capsys.readouterr().out.count("slow-rank") == 1
    assert sum("monitor/slow_rank" in line for line in ranks[0][1].lines) == 1


def lines(lengths: list[float], hosts: list[str], resident: list[float]) -> list[dict[str, float]]:
    """What is logged of iterations, ten of each length, on ranks that hold so many MB."""
    judge = Judge([[*range(len(hosts))]] * len(hosts))
    intervals = Intervals(10, hosts)
    found = []
    for iteration in range(1, 10 * len(lengths) + 1):
        ms = lengths[(iteration - 1) // 10]
        rows = {n: Measured(iteration, False, ms, other=ms, resident=resident[n]) for n in (0, 1)}
        found.append(intervals.add(judge.judge(iteration, rows)))
    return [line for line in found if line is not None]


def test_drift_is_against_the_first_interval() -> None:
    found = lines([100.0, 150.0, 150.0], ["a", "b"], [0.0, 0.0])
    assert [line["monitor/drift_pct"] for line in found] == [0.0, 50.0, 50.0]


@pytest.mark.parametrize(("hosts", "told"), [(["a", "b"], True), (["a", "a"], False)])
def test_one_node_alone_is_not_the_slowest(hosts: list[str], told: bool) -> None:
    (line,) = lines([100.0], hosts, [0.0, 0.0])
    assert ("monitor/slowest_node_by_ms" in line) is told


def test_memory_that_a_rank_does_not_tell_is_left_out_of_the_mean() -> None:
    (line,) = lines([100.0], ["a", "b"], [0.0, 500.0])
    assert line["monitor/resident_mb"] == line["monitor/resident_mb/max"] == 500.0
    assert line["monitor/resident_mb/max_rank"] == 1
    (line,) = lines([100.0], ["a", "b"], [0.0, 0.0])
    assert [key for key in line if "resident" in key] == []
