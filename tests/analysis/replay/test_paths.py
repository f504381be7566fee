# SPDX-License-Identifier: Apache-2.0
"""The path that an iteration could not avoid, another that is about as long, and slack."""

from __future__ import annotations

from pathlib import Path

from machine import Act, Machine, cpu, mark, reduce, run, sync

from megatron.torch_trace.analysis.replay.replay import Replay
from megatron.torch_trace.analysis.timeline.moment import Moment

STRAGGLING = {
    rank: [
        act
        for _ in range(5)
        for act in (
            cpu(40_000 + 25_000 * (rank == 2)),
            run("gemm", 20_000),
            reduce(30_000),
            sync(),
        )
    ]
    for rank in range(4)
}
"""Rank 2 works longer on its CPU before each all-reduce."""


def test_the_path_runs_over_the_straggler_and_the_others_have_slack(tmp_path: Path) -> None:
    replay = Replay.of(Machine(STRAGGLING).record(tmp_path))
    path = replay.critical_path()
    time = dict.fromkeys(range(4), 0)
    for piece in path:
        time[piece.rank] += piece.time_ns
    assert sum(time.values()) == replay.recorded_ns
    assert time[2] > 0.7 * replay.recorded_ns
    slack = {one.rank: one.slack_ns for one in replay.slack().ranks}
    assert slack[2] == 0
    assert [slack[rank] for rank in (0, 1, 3)] == [25_000] * 3
    # Every all-reduce is on the path, since all ranks wait for the straggler in it.
    calls = replay.slack().collectives
    assert [(one.ranks, one.step, one.dimension, one.slack_ns) for one in calls] == [
        ((0, 1, 2, 3), 1, "dp", 0)
    ] * 5


def test_of_two_paths_within_the_error_both_are_told(tmp_path: Path) -> None:
    """Rank 2 is last, and rank 1 nearly so: which of the two it was is luck."""
    programs = {
        rank: [cpu(work), run("gemm", 20_000), reduce(5_000), sync(), cpu(9_000)]
        for rank, work in enumerate((40_000, 99_000, 100_000, 50_000))
    }
    replay = Replay.of(Machine(programs).record(tmp_path))
    pieces, shorter = replay.other_path()
    assert shorter == 1_000
    assert max(pieces, key=lambda one: one.time_ns).rank == 1
    assert sum(one.time_ns for one in pieces) == replay.recorded_ns - 1_000


def test_a_path_that_is_shorter_by_more_than_the_error_is_not_told(tmp_path: Path) -> None:
    programs = {
        rank: [cpu(work), run("gemm", 20_000), reduce(5_000), sync(), cpu(9_000)]
        for rank, work in enumerate((40_000, 93_000, 100_000, 40_000))
    }
    replay = Replay.of(Machine(programs).record(tmp_path))
    assert replay.other_path() == ((), 0)
    single = Replay.of(Machine({0: programs[0]}).record(tmp_path / "one"))
    assert single.other_path() == ((), 0)


def test_two_paths_are_alike_if_steps_differ_by_more_than_they_do(tmp_path: Path) -> None:
    """Rank 2 is last by 7 us in both steps, of which the second is 100 us longer."""

    def step(work: int) -> list[Act]:
        return [cpu(work), run("gemm", 20_000), reduce(5_000), sync(), cpu(9_000)]

    programs = {
        rank: [*step(work), mark(), *step(work + 100_000)]
        for rank, work in enumerate((40_000, 93_000, 100_000, 40_000))
    }
    replay = Replay.of(Machine(programs).record(tmp_path))
    pieces, shorter = replay.other_path()
    assert shorter == 7_000
    assert max(pieces, key=lambda one: one.time_ns).rank == 1


def test_the_path_is_that_of_the_step_that_is_closest_to_the_mean(tmp_path: Path) -> None:
    lengths = (100_000, 200_000, 130_000)
    program: list[Act] = []
    for length in lengths:
        program += [mark()] if program else []
        program += [cpu(length - 24_000 - 5_000), run("gemm", 20_000), sync()]
    path = Replay.of(Machine({0: program}).record(tmp_path)).critical_path()
    assert sum(one.time_ns for one in path) == 130_000


def test_what_only_some_ranks_have_recorded_is_in_no_path(tmp_path: Path) -> None:
    step = [cpu(40_000), run("gemm", 20_000), sync()]
    programs = {0: [*step, mark(), cpu(90_000), *step], 1: step}
    replay = Replay.of(Machine(programs).record(tmp_path))
    assert replay.steps == 1
    other, shorter = replay.other_path()
    for path, rank in ((replay.critical_path(), 0), (other, 1)):
        assert [(one.rank, one.kind, one.time_ns) for one in path] == [
            (rank, "cpu", 45_000),
            (rank, "compute", 24_000),
        ]
    assert shorter == 0


def test_each_part_of_the_path_tells_where_to_look_in_the_trace_of_its_rank(tmp_path: Path) -> None:
    programs = {
        rank: [cpu(work), run("gemm", 200_000), reduce(50_000), sync(), cpu(9_000)]
        for rank, work in enumerate((40_000, 99_000, 100_000, 50_000))
    }
    path = Replay.of(Machine(programs).record(tmp_path)).critical_path()
    assert [(one.rank, one.kind, one.longest) for one in path] == [
        (2, "cpu", Moment(0, 100_000)),
        (2, "compute", Moment(105_000, 200_000)),
        (0, "communication", Moment(246_500, 110_000)),  # the kernel of rank 0, which waits in it
        (0, "cpu", Moment(360_500, 9_000)),
    ]
