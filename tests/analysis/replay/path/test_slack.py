# SPDX-License-Identifier: Apache-2.0
"""By how much spans, ranks and collectives could be later without the window ending later."""

from __future__ import annotations

from pathlib import Path

from machine import Machine, cpu, run
from trace_builder import TraceBuilder

from megatron.torch_trace.analysis.replay.answers import CollectiveSlack, RankSlack, SpanSlack
from megatron.torch_trace.analysis.replay.replay import Replay


def test_a_span_is_as_free_as_the_least_free_one_of_its_name_in_its_step(tmp_path: Path) -> None:
    """Two launches on a stream of their own, whose work is awaited with a long kernel."""
    trace = TraceBuilder(0, 1).gpu("long", 10_000, 90_000, launch=5_000)
    for begin, work in ((20_000, 3_000), (40_000, 13_000)):
        trace.annotation("forward micro-batch 0", begin, begin + 10_000)
        trace.gpu("short", begin + 7_000, begin + 7_000 + work, launch=begin + 2_000, stream=9)
    trace.call("cudaDeviceSynchronize", 60_000, 94_000).step(1, 0, 100_000)
    # One that begins with a step is of this step, and one before all steps of none.
    trace.annotation("optimizer", 100_000, 150_000).step(2, 100_000, 200_000)
    trace.gpu("update", 115_000, 120_000, launch=110_000)
    trace.annotation("optimizer", -30_000, -10_000)
    replay = Replay.of(trace.write(tmp_path / "rank-0.json"))
    # The call waits until 90 us, for work that was done at 60, which began 18 us after its launch.
    assert replay.slack().spans == (
        SpanSlack(0, 1, "forward micro-batch 0", 30_000),
        SpanSlack(0, 2, "optimizer", 0),
    )


def test_a_cpu_whose_work_the_gpu_does_last_is_not_free(tmp_path: Path) -> None:
    replay = Replay.of(Machine({0: [cpu(10_000), run("gemm", 90_000)]}).record(tmp_path))
    assert replay.slack().ranks == (RankSlack(0, 0),)


def test_a_collective_is_of_the_step_in_which_all_have_come(tmp_path: Path) -> None:
    """The steps begin 7 ms after the times of the trace do."""
    for rank in (0, 1):
        trace = TraceBuilder(rank, 2, clock=7_000_000)
        for number in (1, 2):
            begin = 200_000 * (number - 1)
            trace.collective(begin + 50_000 - 20_000 * rank, begin + 60_000, launch=begin + 20_000)
            trace.call("cudaDeviceSynchronize", begin + 50_000, begin + 64_000)
            trace.step(number, begin, begin + 200_000)
        trace.write(tmp_path / f"rank-{rank}.json")
    assert Replay.of(tmp_path).slack().collectives == tuple(
        CollectiveSlack((0, 1), step, "dp", "allreduce", 0) for step in (1, 2)
    )
