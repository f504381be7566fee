# SPDX-License-Identifier: Apache-2.0
"""A gain's error knows the luck of steps and ranks, and a rank's cause is what it alone does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from machine import Act, Machine, cpu, load, mark, reduce, run, sync
from trace_builder import TraceBuilder

from megatron import torch_trace
from megatron.torch_trace.analysis.replay.change import (
    DataLoaderScaled,
    KernelsScaled,
    LaunchScaled,
    RankAsMedian,
)
from megatron.torch_trace.analysis.replay.gain_error import GainError, jackknife, of_steps
from megatron.torch_trace.analysis.replay.path.causes import Cause
from megatron.torch_trace.analysis.replay.replay import Replay
from megatron.torch_trace.format.undisturbed_iterations import UndisturbedIterations

Programs = Mapping[int, Sequence[Act]]


def lucky(more: Mapping[int, int], sleep: Mapping[int, int] | None = None) -> Programs:
    """Four ranks, some with a CPU that takes a little longer everywhere, some that sleep once."""
    slept = sleep or {}
    return {
        rank: [
            act
            for turn in range(9)
            for act in (
                cpu(100_000 + more.get(rank, 0) + (slept.get(rank, 0) if turn == 4 else 0)),
                run("gemm", 20_000),
                reduce(5_000),
                sync(),
            )
        ]
        for rank in range(4)
    }


def test_the_parts_of_an_error_are_added_as_squares() -> None:
    assert GainError(3.0, steps=4.0).total == 5
    assert GainError(1.0, 2.0, 4.0, 10.0).of_run(100.0, 0.2).total == 23


def test_of_two_steps_the_spread_itself_is_luck() -> None:
    assert of_steps([10.0]) is None
    assert of_steps([10.0, 30.0]) == pytest.approx(1.84 * 10.0)
    assert of_steps([10.0] * 20) == 0.0
    # Of more than ten steps 5 % are added: the standard deviation of these is 10.26.
    assert of_steps([10.0, 30.0] * 10) == pytest.approx(1.05 * 10.26 / 20**0.5, rel=1e-4)


def test_of_half_as_much_training_every_part_of_an_error_is_half() -> None:
    whole = GainError(10.0, 20.0, None, 4.0, 2.0, 6.0)
    assert whole.times(0.5) == GainError(5.0, 10.0, None, 2.0, 1.0, 3.0)


def test_a_gain_that_hangs_on_one_rank_has_an_error_and_one_that_does_not_has_none() -> None:
    assert jackknife(50.0, [50.0]) is None
    assert jackknife(50.0, [50.0] * 3) == 0.0
    assert jackknife(50.0, [50.0, 50.0, 110.0]) == pytest.approx(40.0)
    assert jackknife(50.0, [50.0, 110.0], others=1) == pytest.approx(40.0)


def test_where_nothing_tells_the_spread_an_error_is_a_part_of_the_gain() -> None:
    assert GainError(0.0).of_run(100.0, None).total == 16
    assert GainError(0.0, ranks=0.0).of_run(100.0, None).total == 0


def test_undisturbed_iterations_tell_by_which_part_iterations_differ() -> None:
    assert UndisturbedIterations.of([[1, 100], [2, 100]]).spread is None
    found = UndisturbedIterations.of([[1, 90], [2, 95], [3, 100], [4, 105], [5, 110]])
    assert found.spread == pytest.approx(0.075)


def test_a_rank_that_sleeps_once_is_mended_there_and_its_luck_stays(tmp_path: Path) -> None:
    recorded = Machine(lucky({1: 1_000, 2: 3_000, 3: 2_000}, sleep={2: 400_000}))
    replay = Replay.of(recorded.record(tmp_path))
    result = replay.simulate([RankAsMedian(2)])
    # It slept for 400 us, and in that turn it also took 2 us more than the median of the others.
    assert replay.recorded_ns - result.iteration_ns == 402_000 - 1_000
    assert result.causes == (Cause(2, "training loop", 402_000, 1),)
    assert result.error.ranks is not None
    assert result.error.ranks < 2_000


@pytest.mark.parametrize("steps", [1, 2])
def test_one_peer_tells_the_luck_of_a_step_by_what_it_takes_longer_itself(
    steps: int, tmp_path: Path
) -> None:
    def step(rank: int) -> list[Act]:
        """Rank 1 sleeps in one turn; in another one rank 0 takes a little longer."""
        late = {2: 400_000} if rank else {4: 12_000}
        return [
            act
            for turn in range(6)
            for act in (
                cpu(200_000 + late.get(turn, 0)),
                run("gemm", 50_000),
                reduce(8_000),
                sync(),
            )
        ]

    programs = {rank: [*step(rank), *[mark(), *step(rank)] * (steps - 1)] for rank in range(2)}
    result = Replay.of(Machine(programs).record(tmp_path)).simulate([RankAsMedian(1)])
    # 12 us of rank 0 in each step; and of each sleep as much, which as often is less as more.
    luck = 12_000 * steps**0.5 / steps
    assert result.error.ranks == pytest.approx((12_000**2 + luck**2) ** 0.5)


@pytest.mark.parametrize("factor", [0.0, 0.5])
def test_one_rank_that_waits_for_data_in_every_step_is_no_luck_of_that_rank(
    factor: float, tmp_path: Path
) -> None:
    def step(rank: int, late: int) -> list[Act]:
        waits = [load(400_000)] if rank == 0 else [load(2_000)]
        return [*waits, cpu(100_000 + late), run("gemm", 50_000), reduce(8_000), sync()]

    # Of the CPU's own work rank 1 takes longer by 6 us in each step.
    programs = {
        rank: [act for turn in range(3) for act in (mark(), *step(rank, 6_000 * rank))][1:]
        for rank in range(2)
    }
    replay = Replay.of(Machine(programs).record(tmp_path))
    result = replay.simulate([DataLoaderScaled(factor)])
    gain = replay.recorded_ns - result.iteration_ns
    # Without any wait rank 1 is the last, by 6 us; with half of the waits rank 0 still is.
    assert gain == (394_000 if factor == 0.0 else 200_000)
    assert result.error.steps == 0.0
    # With either rank left out, both take as long beside the waits.
    assert result.error.ranks == 0.0


def test_a_rank_that_is_slower_everywhere_is_mended_everywhere(tmp_path: Path) -> None:
    replay = Replay.of(Machine(lucky({1: 9_000, 2: 7_000})).record(tmp_path))
    result = replay.simulate([RankAsMedian(1)])
    # Rank 2 is last then: whether it is the next one or not makes all the gain.
    assert replay.recorded_ns - result.iteration_ns == 9 * 2_000
    assert result.causes == ()
    assert result.error_ns > 9 * 2_000
    # What one step does not tell, ranks tell instead of it.
    assert result.error.steps == result.error.ranks


def test_of_nine_peers_the_jackknife_counts_all_and_leaves_the_longest_out(tmp_path: Path) -> None:
    turns = {
        rank: [
            act
            for _ in range(9)
            for act in (cpu(100_000 + 1_000 * rank), run("gemm", 20_000), reduce(5_000), sync())
        ]
        for rank in range(10)
    }
    result = Replay.of(Machine(turns).record(tmp_path)).simulate([RankAsMedian(9)])
    # Without rank 8, which is the next one, it would be twice the gain; without another, the same.
    assert result.error.ranks == jackknife(9_000, [18_000, *[9_000] * 8]) == 8_000


def test_one_step_is_as_sure_as_the_ranks_are_alike(tmp_path: Path) -> None:
    def error(kernels: Sequence[int]) -> float | None:
        programs = {
            rank: [
                act
                for _ in range(9)
                for act in (cpu(50_000), run("gemm", kernel), reduce(5_000), sync())
            ]
            for rank, kernel in enumerate(kernels)
        }
        replay = Replay.of(Machine(programs).record(tmp_path / str(kernels[0])))
        return replay.simulate([KernelsScaled("gemm", 0.5)]).error.steps

    assert error([20_000] * 4) == 0
    # The change takes 30 us away from one rank and 10 from the others: 10 / 15 of the gain.
    assert error([60_000, 20_000, 20_000, 20_000]) == pytest.approx(9 * 30_000 * 10 / 15)


def halved(kernels: Sequence[int], folder: Path) -> GainError:
    """The error of kernels of half their time, which are so long in each step of one rank."""
    program: list[Act] = []
    for kernel in kernels:
        program += [mark()] if program else []
        program += [cpu(50_000), run("gemm", kernel), sync()]
    machine = Machine({0: program})
    replay = Replay.of(machine.record(folder))
    assert replay.recorded_ns == replay.simulated_ns == machine.iteration_ns
    return replay.simulate([KernelsScaled("gemm", 0.5)]).error


def test_a_gain_that_differs_from_step_to_step_is_known_as_well_as_their_mean(
    tmp_path: Path,
) -> None:
    # 20 and 30 us: a standard deviation of 7.07 us, and Student's t of two.
    error = halved([40_000, 60_000], tmp_path)
    assert error == GainError(0.0, pytest.approx(1.84 * 5_000))


def test_two_steps_that_gain_the_same_leave_nothing_unknown(tmp_path: Path) -> None:
    error = halved([40_000, 40_000], tmp_path)
    assert error == GainError(0.0, 0.0)
    assert error.of_run(20_000, None).total == 0


def test_a_gain_is_as_unsure_as_the_time_that_a_launch_takes_to_get_through(tmp_path: Path) -> None:
    """The last kernel began 15 us later than launches usually take, which may be luck."""
    trace = TraceBuilder(0, 1).step(1, 0, 90_000).gpu("long", 10_000, 500_000, launch=5_000)
    for number, late in enumerate((0, 0, 0, 15_000), 1):
        begin = 20_000 * number + 5_000 + late
        trace.gpu("short", begin, begin + 10_000, launch=20_000 * number, stream=9)
    replay = Replay.of(trace.write(tmp_path / "rank-0.json"))
    assert replay.error_ns == 0
    result = replay.simulate([KernelsScaled("long", 0.0)])
    assert (result.iteration_ns, result.error.replay) == (110_000, 15_000.0)
    alone = TraceBuilder(0, 1).step(1, 0, 90_000)
    alone.events += [one for one in trace.events if '"long"' not in one]
    short = Replay.of(alone.write(tmp_path / "alone" / "rank-0.json"))
    # Where the graph itself may be wrong by that, no gain is known any better.
    assert short.error_ns == 15_000
    assert short.simulate([KernelsScaled("short", 1.0)]).error.replay == 15_000.0


def test_a_single_rank_and_step_tell_no_spread(tmp_path: Path) -> None:
    replay = Replay.of(Machine({0: lucky({})[0]}).record(tmp_path))
    error = replay.simulate([LaunchScaled(0.0)]).error
    assert (error.steps, error.ranks) == (None, None)


def test_a_rank_that_sleeps_behind_a_later_one_is_found_all_the_same(tmp_path: Path) -> None:
    programs = {
        rank: [
            act
            for turn in range(9)
            for act in (
                cpu(100_000 + 60_000 * (rank == 1) + 400_000 * (rank == 2 and turn == 4)),
                run("gemm", 20_000),
                reduce(5_000),
            )
        ]
        + [sync()]
        for rank in range(4)
    }
    analysis = torch_trace.analyze(Machine(programs).record(tmp_path), gains=True)
    (found,) = (one for one in analysis.findings if one.evidence.get("more_ns"))
    assert (found.code, found.evidence["rank"]) == ("straggler", 2)
    assert found.title == (
        "In an iteration, rank 2's CPU takes 0.4 ms longer than on the ranks that do the same "
        "work, in 1 stretch of the training loop's thread outside of all spans. In this window "
        "other ranks are late, too."
    )
    assert (found.change, found.sure_gain_ns) == ("--rank 2=median", 0)
