# SPDX-License-Identifier: Apache-2.0
"""Where to look: the example of a row, the course of a rank's time, lateness by collective."""

from __future__ import annotations

from pathlib import Path

from trace_builder import GEMM, NCCL, TraceBuilder

from megatron.torch_trace.analysis.gpu_work.kernels import kernel_rows
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.results.rank_groups import GroupShares, by_coordinate, by_step
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.analysis.timeline.moment import Moment
from megatron.torch_trace.analysis.timeline.time_slices import SLICES, course_of

LATE = 300_000


def late_rank(folder: Path) -> Analysis:
    """Two ranks with three calls each; rank 1 comes to the second one late."""
    for rank in (0, 1):
        trace = TraceBuilder(rank, 2).step(5, 0, 4_000_000)
        for call in range(3):
            end = 1_000_000 * (call + 1)
            late = LATE if (rank, call) == (1, 1) else 0
            start = end - 400_000 + late
            trace.gpu(GEMM, start - 100_000, start, launch=start - 110_000)
            trace.collective(start, end, dimension="dp", launch=start - 90_000)
        trace.write(folder / f"rank-{rank}.json")
    return analyze(folder)


def test_the_example_of_a_kernel_is_its_longest_call(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 200)
    trace.gpu(GEMM, 10, 30, launch=1).gpu(GEMM, 50, 110, launch=2).gpu(GEMM, 120, 180, launch=3)
    (row,) = kernel_rows(trace.timeline(tmp_path))
    assert row.longest == Moment(50, 60)


def test_the_slices_of_the_course_add_up_to_the_breakdown(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100_003)
    trace.gpu(GEMM, 7, 40_000, launch=1).gpu(NCCL, 30_000, 70_001, launch=2)
    trace.gpu("Memcpy HtoD", 80_000, 80_999, launch=3, cat="gpu_memcpy")
    timeline = trace.timeline(tmp_path)
    course = course_of(timeline.sets, timeline.window)
    assert len(course.compute) == SLICES
    assert (course.edges_ns[0], course.edges_ns[-1]) == (0, 100_003)
    parts = (course.compute, course.exposed_communication, course.exposed_memory)
    assert [sum(part) for part in parts] == [39_993, 30_001, 999]


def test_lateness_by_collective_adds_up_and_names_the_worst_call(tmp_path: Path) -> None:
    analysis = late_rank(tmp_path)
    worst = analysis.stragglers[0]
    (row,) = worst.by_collective
    assert (worst.rank, row.dimension, row.collective) == (1, "dp", "allreduce")
    assert (row.calls, row.last_arrivals) == (worst.calls, worst.last_arrivals)
    assert (row.imposed_wait_ns, row.own_wait_ns) == (worst.imposed_wait_ns, worst.own_wait_ns)
    # From the arrival of the first rank to the end of the call.
    assert row.worst == Moment(1_600_000, 400_000)


def test_a_finding_is_shown_where_it_is_worst(tmp_path: Path) -> None:
    shown = {one.code: one.example for one in late_rank(tmp_path).findings}
    assert shown["exposed_communication_dp"] == (0, Moment(600_000, 400_000))


def test_steps_and_coordinates_are_means_with_their_extremes(tmp_path: Path) -> None:
    for rank, end in ((0, 1_000), (1, 3_000)):
        own = {"coordinates": {"tp": rank, "pp": 0}}
        trace = TraceBuilder(rank, 2, own=own).step(5, 0, end)
        trace.gpu(GEMM, 0, end // 2, launch=0).write(tmp_path / f"rank-{rank}.json")
    ranks = analyze(tmp_path).ranks
    half = (0.5, 0.0, 0.0, 0.5)
    assert by_step(ranks) == (GroupShares("step 5", 2, 2_000.0, 1_000, 3_000, 0, 1, half),)
    assert by_coordinate(ranks) == (
        GroupShares("tp0", 1, 1_000.0, 1_000, 1_000, 0, 0, half),
        GroupShares("tp1", 1, 3_000.0, 3_000, 3_000, 1, 1, half),
    )
