# SPDX-License-Identifier: Apache-2.0
"""When a slow iteration asks for a window, of which ranks, and where requested windows are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_requests import Rank0, plan_of

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.followers import followers
from megatron.torch_profile.metrics.step_times import ProfiledIterations
from megatron.torch_profile.monitor.agreement import Agreed
from megatron.torch_profile.monitor.channel import OneProcess
from megatron.torch_profile.monitor.heartbeat import Heartbeat
from megatron.torch_profile.monitor.iterations.judgement import Judge, Judged
from megatron.torch_profile.monitor.requested_steps import RequestedSteps
from megatron.torch_profile.monitor.slow_iterations import SlowIterations
from megatron.torch_profile.plan import watch_flags
from megatron.torch_profile.plan.ranks import Layout
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.format.requests import Request


class Run:
    """Iterations of 100 ms, a second each."""

    def __init__(self, **flags: Any) -> None:
        self.asked: list[tuple[int, Request]] = []
        self.iteration = 0
        config = TorchProfileConfig(trigger=["slow-iteration"], **flags)
        self.slow = SlowIterations(
            config,
            lambda name, request: self.asked.append((self.iteration, request)),
            lambda: float(self.iteration),
        )

    def see(self, count: int, ms: float = 100.0, *, disturbed: bool = False) -> None:
        for _ in range(count):
            self.iteration += 1
            self.slow.see(self.iteration, ms, 3, disturbed=disturbed)


def test_a_slow_iteration_asks_once_the_median_has_settled_and_evaluation_never_does() -> None:
    run = Run(trigger_apart=0)
    run.see(3, 9000.0)  # compiles and tunes
    run.see(19)
    run.see(1, 400.0)  # the median rests on too little
    run.see(20)
    assert run.asked == []
    run.see(1, 149.0)
    run.see(1, 9000.0, disturbed=True)
    assert run.asked == []
    run.see(1, 151.0)
    assert run.asked == [(46, Request())]


def test_a_median_of_20_iterations_is_enough_and_just_the_factor_is_not_slow() -> None:
    run = Run(trigger_factor=1.5)
    run.see(23)
    run.see(1, 151.0)
    assert [iteration for iteration, _ in run.asked] == [24]
    other = Run(trigger_factor=1.5)
    other.see(23)
    other.see(1, 150.0)
    assert other.asked == []


def test_so_many_windows_and_so_far_apart() -> None:
    run = Run(trigger_windows=2, trigger_apart=60)
    run.see(30)
    for _ in range(10):
        run.see(1, 1000.0)
        run.see(29)
    assert [iteration for iteration, _ in run.asked] == [31, 91]


@pytest.mark.parametrize(
    ("words", "expected"), [(["slowest"], ("3",)), (["tp=0", "7"], ("tp=0", "7")), (None, None)]
)
def test_ranks_of_the_request_are_the_slowest_or_those_of_the_flag(
    words: list[str] | None, expected: tuple[str, ...] | None
) -> None:
    run = Run(trigger_ranks=words)
    run.see(30)
    run.see(1, 1000.0)
    assert [request.ranks for _, request in run.asked] == [expected]


@pytest.mark.parametrize(
    ("words", "expected"), [(["slowest"], []), (["0"], [("0",)]), (None, [None])]
)
def test_where_the_slowest_is_asked_for_and_not_known_nobody_is_asked(
    words: list[str] | None, expected: list[tuple[str, ...] | None]
) -> None:
    run = Run(trigger_ranks=words)
    run.see(30)
    whole = Judged(31, False, in_parts=False, total=1000.0, rows={}, excess={}, parts={})
    run.slow.see_judged(whole, Judge([[0]]))
    assert [request.ranks for _, request in run.asked] == expected


def test_the_request_goes_the_way_of_all_requests(tmp_path: Path) -> None:
    rank_0 = Rank0(tmp_path)
    rank_0.look(1)
    rank_0.look(2)
    rank_0.desk.ask("slow-1", Request(ranks=("1",)))
    assert rank_0.desk.busy
    rank_0.look(3)
    assert rank_0.answer("slow-1") == ("accepted", "records iteration 15 on rank 1.")
    rank_0.look(4)
    assert (tmp_path / "requests" / "slow-1.json").exists()
    assert rank_0.channel.check(["agreed/0"])
    assert not rank_0.channel.check(["agreed/1"])


def test_without_the_monitor_rank_0_takes_its_own_iterations_and_knows_pauses() -> None:
    seen: list[tuple[int, bool]] = []
    heartbeat = Heartbeat(None, lambda iteration: iteration == 5)
    heartbeat.ended = lambda iteration, ms, disturbed: seen.append((iteration, disturbed))
    for iteration in range(1, 9):
        heartbeat.begin_step(iteration)
        if iteration == 3:
            heartbeat.begin_pause("evaluation")
            heartbeat.end_pause()
    ordinary = [iteration for iteration, disturbed in seen if not disturbed]
    # Not the third with its evaluation, the window in 5, and 6 in which the profiler stops.
    assert ordinary == [1, 2, 4, 7]


def test_what_runs_between_the_iterations_of_an_attached_loop_is_in_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0
    monkeypatch.setattr("time.monotonic_ns", lambda: now)
    seen: list[tuple[int, float, bool]] = []
    heartbeat = Heartbeat()
    heartbeat.ended = lambda *told: seen.append(told)
    paused = []
    for iteration in (1, 2, 3):
        heartbeat.begin_step(iteration)
        now += 5_000_000
        paused.append(heartbeat.paused)
        heartbeat.end_step("what runs between two steps")
        paused.append(heartbeat.paused)
        now += 80_000_000
    assert seen[1:] == [(1, 5.0, False), (2, 5.0, False)]
    assert paused == [None, "what runs between two steps"] * 3


class Told:
    def __init__(self) -> None:
        self.windows: list[Any] = []

    def add(self, window: Window, ranks: tuple[int, ...]) -> None:
        self.windows.append((window, ranks))

    def add_window(self, window: Window) -> None:
        self.windows.append(window)


class Idle:
    def begin_step(self, iteration: int) -> None:
        """Nothing."""


def test_sinks_and_step_times_of_every_rank_are_told_of_a_requested_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, metrics = Told(), Told()
    monkeypatch.setattr(followers, "results", results)
    monkeypatch.setattr(followers, "metrics", metrics)
    channel = OneProcess()
    channel.set("agreed/0", Agreed("a", 30, 31, 1, (0,), None, False).as_text())
    recorder: Any = Idle()
    steps = RequestedSteps(recorder, plan_of(tmp_path, rank=1), channel)
    steps.look()
    steps.begin_step(20)
    window = Window(30, 31, 1)
    assert results.windows == [(window, (0,))]
    assert metrics.windows == [window]
    assert not steps.busy, "rank 1 records nothing, and tells nothing"


def test_step_times_leave_a_requested_window_out() -> None:
    profiled = ProfiledIterations([Window(3, 3, 1)])
    assert [i for i in range(1, 6) if i in profiled] == [2, 3, 4]
    profiled.add(Window(9, 10, 1))
    profiled.add(Window(7, 7, 0))
    assert [i for i in range(6, 20) if i in profiled] == [7, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"trigger_factor": 1.0}, "--torch-profile-trigger-factor 1: must be more than 1."),
        (
            {"trigger_factor": float("nan")},
            "--torch-profile-trigger-factor nan: must be more than 1.",
        ),
        ({"on_hang": 0.0}, "--torch-profile-on-hang 0: must be more than 0 seconds."),
        (
            {"trigger": ["slow-iteration"], "trigger_ranks": ["slowest"]},
            "--torch-profile-trigger-ranks slowest: nothing sees which rank is slowest; add "
            "--torch-profile-monitor.",
        ),
        (
            {"trigger": ["slow-iteration"], "trigger_ranks": ["9"]},
            "--torch-profile-trigger-ranks 9: ranks must be 0 to 1 (world size 2).",
        ),
    ],
)
def test_flags_that_can_be_right_in_no_run_are_one_sentence(
    flags: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError) as error:
        watch_flags.check(TorchProfileConfig(**flags), Layout(2, {}))
    assert str(error.value) == says
