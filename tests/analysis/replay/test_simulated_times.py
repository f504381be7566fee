# SPDX-License-Identifier: Apache-2.0
"""When everything of a rank happens in a simulated iteration, also between nodes of the graph."""

from __future__ import annotations

from pathlib import Path

from machine import Machine, copy, run, sync
from trace_builder import BACKWARD, TraceBuilder

from megatron.torch_trace.analysis.replay.change import (
    Change,
    CopiesScaled,
    KernelsScaled,
    WithoutSynchronisation,
)
from megatron.torch_trace.analysis.replay.effects.change_effects import adjusted
from megatron.torch_trace.analysis.replay.replay import Replay
from megatron.torch_trace.analysis.replay.simulated_times import (
    Knots,
    SimulatedTimes,
    simulated_times,
)
from megatron.torch_trace.columns.intervals import ints

LOOP, STREAM = (42, 42), (0, 7)


def waiting(clock: int = 0, correlation: int = 77) -> TraceBuilder:
    """A kernel of 40 us and one of 10 us right behind it, for which the CPU waits 44 us."""
    trace = TraceBuilder(0, 1, clock=clock).step(1, 0, 100_000)
    trace.gpu("gemm", 20_000, 60_000, launch=10_000)
    trace.gpu("add", 60_000, 70_000, launch=12_000)
    trace.call("cudaStreamSynchronize", 30_000, 74_000, args={"correlation": correlation})
    return trace.gpu("after", 90_000, 99_000, launch=85_000)


def after(change: Change, path: Path) -> SimulatedTimes:
    """The times of the one rank in a trace or folder."""
    replay = Replay.of(path)
    adjustment = adjusted(replay.found, [change])
    result = replay.evaluated(adjustment)
    freed = adjustment.freed(replay.found)
    return simulated_times(replay.found.ranks[0], result.times, adjustment.duration, freed)


def moved(knots: Knots, *slices: tuple[int, int]) -> list[tuple[int, int]]:
    """Begins and ends of these slices in the simulated iteration."""
    begins, ends = knots.moved(*(ints(one) for one in zip(*slices, strict=True)))
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def test_slices_between_two_points_shrink_as_the_time_between_them_does(tmp_path: Path) -> None:
    times = after(KernelsScaled("gemm", 0.5), waiting().write(tmp_path / "rank-0.json"))
    # The wait from 30 to 74 us takes 24 us now; what follows is 20 us earlier, and as long.
    assert moved(
        times.of(LOOP), (0, 100_000), (30_000, 74_000), (41_000, 52_000), (80_000, 90_000)
    ) == [(0, 80_000), (30_000, 54_000), (36_000, 42_000), (60_000, 70_000)]
    assert times.gone == frozenset()


def test_work_begins_and_ends_where_the_graph_has_it_and_arrows_end_where_it_begins(
    tmp_path: Path,
) -> None:
    times = after(KernelsScaled("gemm", 0.5), waiting().write(tmp_path / "rank-0.json"))
    work, arrow = [(20_000, 60_000), (60_000, 70_000), (90_000, 99_000)], (60_000, 60_000)
    assert moved(times.of(STREAM), *work, arrow) == [
        (20_000, 40_000),
        (40_000, 50_000),
        (70_000, 79_000),
        (40_000, 40_000),
    ]


def test_what_lies_before_or_behind_all_points_keeps_its_distance_to_them(tmp_path: Path) -> None:
    times = after(KernelsScaled("gemm", 0.5), waiting().write(tmp_path / "rank-0.json"))
    assert moved(times.of(LOOP), (-9_000, -4_000), (103_000, 110_000)) == [
        (-9_000, -4_000),
        (83_000, 90_000),
    ]


def test_a_thread_without_a_point_follows_the_thread_that_runs_the_steps(tmp_path: Path) -> None:
    """The backward pass is first in the file, and has points of its own."""
    trace = TraceBuilder(0, 1)
    engine = "autograd::engine::evaluate_function: MmBackward0"
    trace.op(engine, 45_000, 105_000, tid=BACKWARD)
    trace.gpu("backward", 104_000, 114_000, launch=99_000, tid=BACKWARD)
    trace.op("aten::mm", 0, 40_000).gpu("forward", 35_000, 50_000, launch=30_000)
    trace.op("aten::add_", 112_000, 125_000).gpu("update", 122_000, 135_000, launch=117_000)
    trace.step(1, 0, 130_000)
    times = after(KernelsScaled("forward", 0.5), trace.write(tmp_path / "rank-0.json"))
    assert set(times.tracks) == {LOOP, (42, BACKWARD), STREAM}
    assert times.of((42, 7)) is times.tracks[LOOP]


def test_times_are_of_the_rank_s_own_clock(tmp_path: Path) -> None:
    times = after(KernelsScaled("gemm", 0.5), waiting(7_000_000).write(tmp_path / "a.json"))
    assert moved(times.of(LOOP), (7_080_000, 7_090_000)) == [(7_060_000, 7_070_000)]
    assert moved(times.of(STREAM), (7_090_000, 7_099_000)) == [(7_070_000, 7_079_000)]


def test_only_the_call_that_waits_no_more_is_gone(tmp_path: Path) -> None:
    path = waiting().write(tmp_path / "rank-0.json")
    assert after(WithoutSynchronisation(), path).gone == {77}
    assert after(KernelsScaled("gemm", 0.5), path).gone == frozenset()


def test_a_call_without_a_number_is_not_gone_nor_is_one_that_launches(tmp_path: Path) -> None:
    """With 0 in its place, whatever has no number would go with it."""
    unnumbered = waiting(correlation=0).write(tmp_path / "unnumbered" / "rank-0.json")
    assert after(WithoutSynchronisation(), unnumbered).gone == frozenset()
    program = [run("gemm", 90_000), copy(30_000), run("gemm", 9_000), sync()]
    copies = Machine({0: program}).record(tmp_path / "copies")
    assert after(CopiesScaled("pageable", 0.0), copies).gone == frozenset()
