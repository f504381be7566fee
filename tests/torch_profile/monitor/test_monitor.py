# SPDX-License-Identifier: Apache-2.0
"""The monitor without a training: parts of iterations by a clock of the test's own, and the
way of numbers to rank 0."""

from __future__ import annotations

import math
import os
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from gates import until

from megatron.torch_profile.monitor import heartbeat as heartbeat_module
from megatron.torch_profile.monitor.channel import OneProcess
from megatron.torch_profile.monitor.heartbeat import Heartbeat
from megatron.torch_profile.monitor.iterations import measured
from megatron.torch_profile.monitor.iterations import monitor as monitor_module
from megatron.torch_profile.monitor.iterations.host_side import HostSide
from megatron.torch_profile.monitor.iterations.measured import Measured
from megatron.torch_profile.monitor.iterations.monitor import Monitor
from megatron.torch_profile.monitor.iterations.parts import PARTS
from megatron.torch_profile.monitor.iterations.phase_clock import PhaseClock
from megatron.torch_profile.plan.ranks import Layout
from megatron.torch_profile.plan.topology import CPU, Member, Topology


class Marks:
    """A clock that the test moves, on a GPU that the test lets run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.gpu = math.inf
        self.back: list[Any] = []

    def mark(self) -> list[float]:
        return [self.now]

    def adopt(self) -> None:
        self.back.clear()

    def reading(self) -> AbstractContextManager[bool]:
        return nullcontext(True)

    def done(self, mark: list[float]) -> bool:
        return mark[0] <= self.gpu

    def between(self, begin: list[float], end: list[float]) -> float:
        return end[0] - begin[0]

    def made_ms(self, mark: list[float]) -> float | None:
        return None

    def give_back(self, marks: Any) -> None:
        self.back += marks


def topology(rank: int, *, stages: int = 1, ranks: int = 4) -> Topology:
    peers = ranks // stages
    members = [
        Member(
            number,
            f"node{number // 2}",
            1,
            number,
            CPU,
            {"pp": number // peers, "dp": number % peers},
        )
        for number in range(ranks)
    ]
    return Topology(rank, Layout(ranks, {"pp": stages, "dp": peers}), members)


def test_parts_inside_each_other_add_up_to_the_iteration_and_a_pause_is_no_part() -> None:
    marks = Marks()
    clock = PhaseClock(marks)
    heartbeat = Heartbeat(clock)

    def passes(ms: float) -> None:
        marks.now += ms

    for iteration in (4, 5, 6):  # in which a process settles
        heartbeat.begin_step(iteration)
    heartbeat.begin_step(7)
    clock.begin("forward")
    passes(1)
    clock.begin("data")
    passes(2)
    clock.end("data")
    clock.begin("waiting")
    passes(4)
    clock.end("waiting")
    passes(8)
    clock.end("forward")
    clock.end("optimizer")  # that began before
    passes(16)
    heartbeat.begin_step(8)
    clock.begin("backward")  # and never ends
    passes(32)
    heartbeat.begin_pause("evaluation")
    clock.begin("forward")
    passes(64)
    clock.end("forward")
    heartbeat.end_pause()
    heartbeat.begin_step(9)
    assert clock.read()[3:] == [
        Measured(7, False, 31, forward=9, data=2, waiting=4, other=16),
        Measured(8, True, 32, backward=32),
    ]


def test_an_iteration_is_read_when_the_gpu_has_done_it_and_its_marks_are_used_again() -> None:
    marks = Marks()
    clock = PhaseClock(marks)
    marks.gpu = 15
    for iteration in range(3):
        clock.begin_step(iteration)
        clock.begin("forward")
        marks.now += 10
        clock.end("forward")
    assert [one.iteration for one in clock.read()] == [0]
    assert len(marks.back) == 3
    marks.gpu = 100
    assert [one.iteration for one in clock.read()] == [1]
    # Each once: the mark that ends an iteration begins the next one.
    assert len({id(mark) for mark in marks.back}) == len(marks.back) == 6


def test_iterations_of_the_start_one_in_32_and_those_after_a_slow_one_are_measured_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marks = Marks()
    switched: list[tuple[int, bool]] = []
    clock = PhaseClock(marks, lambda on: switched.append((heartbeat.iteration, on)))
    heartbeat = Heartbeat(clock)
    host = SimpleNamespace(now=0)
    monkeypatch.setattr(heartbeat_module.time, "monotonic_ns", lambda: host.now)
    for iteration in range(1, 62):
        heartbeat.begin_step(iteration)
        clock.begin("forward")
        marks.now += 10.0
        clock.end("forward")
        host.now += 20_000_000 if iteration == 45 else 10_000_000
    rows = clock.read()
    in_parts = [row.iteration for row in rows if row.in_parts]
    assert in_parts == [*range(4, 28), 32, *range(46, 49)]
    # Between, nothing need be wrapped.
    edges = [(4, 28), (32, 33), (46, 49)]
    assert switched == [
        (at, on) for edge in edges for at, on in zip(edge, (True, False), strict=True)
    ]
    assert {row.forward for row in rows if row.in_parts} == {10.0}
    assert {(row.forward, row.other) for row in rows if not row.in_parts} == {(0.0, 10.0)}
    assert measured.parse(measured.as_text([row.packed() for row in rows]).encode()) == rows


def test_a_thread_that_does_not_read_costs_measurements_and_no_memory() -> None:
    clock = PhaseClock(Marks())
    for iteration in range(1000):
        clock.begin_step(iteration)
    assert len(clock.read()) == 64


def test_13_to_118_bytes_go_to_rank_0_and_come_out_as_they_were() -> None:
    thread = {part: float(at) for at, part in enumerate(PARTS)}
    covered = {part: at / 2 for at, part in enumerate(PARTS)}
    rows = [
        Measured(87, True, 12.5, forward=3.25, waiting=1.5, resident=512.0),
        Measured(88, False, 8.0, other=8.0, in_parts=False),
        Measured(89, False, 8.0, backward=7.5, host=HostSide(thread, covered, 1.5, "data")),
        Measured(90, False, 8.25),
    ]
    packed = [row.packed() for row in rows]
    assert [len(one) for one in packed] == [49, 13, 118, 49]
    assert measured.parse(measured.as_text(packed).encode()) == rows
    assert measured.parse(measured.as_text(packed).encode(), after=88) == rows[2:]


def test_ranks_meet_in_the_store_which_does_not_grow_and_a_silent_rank_holds_up_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    channel = OneProcess()
    ranks = [
        (clock := PhaseClock(Marks()), Monitor(clock, topology(rank, ranks=3), channel, 10))
        for rank in range(3)
    ]
    ranks[2][1].wants_lines = True
    for iteration in range(1, 101):
        for rank, (clock, _) in enumerate(ranks):
            clock.begin_step(iteration)
            clock._marks.now += 40.0 if rank == 1 and iteration > 20 else 20.0
            if rank != 1:
                clock.begin("waiting")
                clock._marks.now += 20.0 if iteration > 20 else 0.0
                clock.end("waiting")
        if iteration % 5 == 0:
            for rank, (_, monitor) in enumerate(ranks):
                if rank != 2 or iteration <= 30:
                    monitor.look()
    assert len([key for key in channel._values if key.startswith("rows/")]) == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert line == (
        "[torch-profile slow-rank] warning: rank 1 (node0, dp1) is slow since iteration 21: 20 ms "
        "longer in the rest of the iteration than its peers, in an iteration of 40 ms (seen in "
        "iteration 23)"
    )
    ranks[2][1].look()
    named = [line for line in ranks[0][1].lines if "monitor/slow_rank" in line]
    assert named == [
        {
            "monitor/slow_rank": 1,
            "monitor/slow_since": 21,
            "monitor/slow_seen": 23,
            "monitor/slow_by_ms": 20.0,
            "monitor/slow_by_ms/other": 20.0,
        }
    ]
    told = [line["monitor/iteration"] for line in ranks[0][1].lines if line not in named]
    assert told[:3] == [10, 20, 30]
    assert [*ranks[2][1].lines] == [*ranks[0][1].lines]
    assert ranks[0][1].last_iterations()[-1]["iteration"] == 99


def test_a_leak_is_a_line_of_the_log_and_of_the_metrics(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"mb": 1000.0}
    monkeypatch.setattr(monitor_module, "resident_bytes", lambda: int(held["mb"] * 1e6))
    clock = PhaseClock(Marks())
    watching = Monitor(clock, topology(0, ranks=1), OneProcess(), 50)
    for iteration in range(1, 302):
        clock.begin_step(iteration)
        clock._marks.now += 20.0
        watching.look()
        held["mb"] += 1.0
    assert capsys.readouterr().out.splitlines() == [
        "[torch-profile memory-grows] warning: the memory of rank 0 (node0) on its host grows "
        "by 1 MB an iteration since iteration 51: from 1.05 GB to 1.18 GB (seen in iteration 200)"
    ]
    named = [line for line in watching.lines if "monitor/growing_rank" in line]
    assert named == [
        {
            "monitor/growing_rank": 0,
            "monitor/growing_since": 51,
            "monitor/growing_seen": 200,
            "monitor/growing_mb_per_iteration": 1.0,
        }
    ]
    last = watching.lines[-1]
    assert (last["monitor/iteration"], last["monitor/resident_mb/max_rank"]) == (300, 0)
    assert last["monitor/resident_mb"] == last["monitor/resident_mb/max"] == 1300.0
    assert watching.last_iterations()[-1]["resident"] == 1300.0


def test_a_store_that_fails_costs_the_monitor_and_is_said_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(OneProcess):
        def set(self, key: str, value: str) -> None:
            raise ConnectionError("the store is gone")

    monkeypatch.setattr(monitor_module, "LOOK_SECONDS", 0.01)
    clock = PhaseClock(Marks())
    watching = Monitor(clock, topology(1), Gone(), 10)
    watching.start()
    clock.begin_step(1)
    clock.begin_step(2)
    assert until(lambda: watching._guard.failed)
    watching.stop()
    (line,) = capsys.readouterr().out.splitlines()
    assert line == (
        "[torch-profile monitor-failed] warning: rank 1 is not monitored any more: "
        "ConnectionError: the store is gone"
    )


def test_a_fork_of_training_that_ends_leaves_the_store_to_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, store = PhaseClock(Marks()), OneProcess()
    watching = Monitor(clock, topology(0, ranks=1), store, 10)
    for iteration in range(1, 8):
        clock.begin_step(iteration)
    with monkeypatch.context() as fork:
        fork.setattr(os, "getpid", lambda: -1)
        watching.stop()
        assert store._values == {}
    watching.stop()
    assert [*store._values] == ["rows/0"]
