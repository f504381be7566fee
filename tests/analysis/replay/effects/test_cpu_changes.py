# SPDX-License-Identifier: Apache-2.0
"""What changes of the CPU take away, and what they leave."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine import Act, Machine, cpu, reduce, run, sync
from trace_builder import BACKWARD, TraceBuilder

from megatron.torch_trace.analysis.replay.change import (
    Change,
    LaunchScaled,
    OperatorsScaled,
    RankAsMedian,
    RecordingCost,
)
from megatron.torch_trace.analysis.replay.effects.change_effects import adjusted
from megatron.torch_trace.analysis.replay.kernels.peer_segments import segments_of
from megatron.torch_trace.analysis.replay.replay import Replay

STEP = 100_000


def operators(*, wait: bool = False) -> TraceBuilder:
    """An operator of 40 us, in which a call of 8 us launches, or waits for 20 us after it."""
    trace = TraceBuilder(0, 1).op("aten::mm", 0, 40_000)
    trace.gpu("gemm", 14_000, 34_000)
    trace.call("cudaLaunchKernel", 10_000, 18_000, args={"correlation": trace.correlation})
    if wait:
        trace.call("cudaStreamSynchronize", 18_000, 38_000)
    # Neither a span nor what another thread does is an operator of this one.
    trace.annotation("forward", 0, 90_000).op("aten::add_", 50_000, 80_000, tid=BACKWARD)
    return trace.step(1, 0, STEP)


def after(trace: TraceBuilder, change: Change, folder: Path) -> int:
    replay = Replay.of(trace.write(folder / "rank-0.json"))
    assert replay.recorded_ns == replay.simulated_ns
    return replay.simulate([change]).iteration_ns


def test_operators_that_take_no_time_leave_the_launches_in_them(tmp_path: Path) -> None:
    assert after(operators(), OperatorsScaled(0.0), tmp_path) == STEP - (40_000 - 8_000)


def test_what_an_operator_waits_for_the_gpu_is_no_time_of_its_own(tmp_path: Path) -> None:
    """The work begins 10 us earlier, since nothing comes before its launch, and is waited for."""
    simulated = after(operators(wait=True), OperatorsScaled(0.0), tmp_path)
    assert simulated == STEP - 10_000 - (40_000 - 38_000)


def test_recording_costs_so_much_an_operator_but_no_more_than_operators_take(
    tmp_path: Path,
) -> None:
    assert after(operators(), RecordingCost(1_000), tmp_path) == STEP - 1_000
    # The operator begins before the launch, in a segment of 10 us.
    assert after(operators(), RecordingCost(50_000), tmp_path) == STEP - 10_000


@pytest.mark.parametrize(("latency", "left"), [(6_000, 1_000), (9_500, 1_500), (600, 600)])
def test_work_begins_1_us_after_a_launch_at_least_and_never_later_than_before(
    latency: int, left: int, tmp_path: Path
) -> None:
    trace = TraceBuilder(0, 1).gpu("gemm", 10_000 + latency, 150_000)
    trace.call("cudaLaunchKernel", 10_000, 18_000, args={"correlation": trace.correlation})
    replay = Replay.of(trace.step(1, 0, STEP).write(tmp_path / "rank-0.json"))
    result = replay.simulate([LaunchScaled(0.0)])
    assert replay.recorded_ns - result.iteration_ns == latency - left
    # So does work whose latency is the usual one.
    assert result.error.replay == 0


def ranks(*more: int) -> dict[int, list[Act]]:
    """Ranks that take so much longer in each of three turns."""
    return {
        rank: [
            act
            for _ in range(3)
            for act in (cpu(50_000 + longer), run("gemm", 20_000), reduce(5_000), sync())
        ]
        for rank, longer in enumerate(more)
    }


def works(replay: Replay, changes: list[Change], rank: int) -> list[int]:
    """How long a rank works before each of its kernels, of more than 20 us."""
    duration = adjusted(replay.found, changes).duration[segments_of(replay.found.ranks[rank])]
    return [one for one in duration.tolist() if one > 20_000]


def test_ranks_that_are_mended_together_are_no_peers_of_each_other(tmp_path: Path) -> None:
    replay = Replay.of(Machine(ranks(0, 6_000, 9_000, 9_000)).record(tmp_path))
    both: list[Change] = [RankAsMedian(2), RankAsMedian(3)]
    assert works(replay, both, 2) == works(replay, both, 3) == [53_000] * 3
    assert works(replay, [RankAsMedian(2)], 2) == [56_000] * 3


def test_where_all_ranks_are_mended_each_has_the_times_of_the_others(tmp_path: Path) -> None:
    replay = Replay.of(Machine(ranks(0, 6_000)).record(tmp_path))
    both: list[Change] = [RankAsMedian(0), RankAsMedian(1)]
    assert works(replay, both, 0) == [56_000] * 3


def test_what_no_peer_does_stays_as_it_is_and_is_sure(tmp_path: Path) -> None:
    programs = ranks(0, 0, 0)
    programs[1] += [cpu(70_000), run("extra", 9_000), sync()]
    replay = Replay.of(Machine(programs).record(tmp_path))
    assert works(replay, [RankAsMedian(1)], 1) == [*[50_000] * 3, 70_000]
    result = replay.simulate([RankAsMedian(1)])
    assert (result.iteration_ns, result.error.ranks) == (replay.recorded_ns, 0.0)
