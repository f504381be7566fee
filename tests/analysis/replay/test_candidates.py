# SPDX-License-Identifier: Apache-2.0
"""Which changes are worth trying, and by how much half of a rank's work could be later."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine import Machine, copy, cpu, reduce, run, sync

from megatron.torch_trace.analysis.replay.answers import middle_slack
from megatron.torch_trace.analysis.replay.change import (
    CommunicationScaled,
    CopiesScaled,
    CudaGraphs,
    GpuAsMedian,
    KernelsScaled,
    LaunchScaled,
    OperatorsScaled,
    Overlapped,
    RankAsMedian,
    WithoutSynchronisation,
)
from megatron.torch_trace.analysis.replay.replay import Replay
from megatron.torch_trace.columns.intervals import ints


def test_the_latest_four_ranks_then_the_longest_communication_and_kernels(tmp_path: Path) -> None:
    """Half of ten ranks are later than most."""
    programs = {
        rank: [
            cpu(50_000 + 20_000 * rank),
            run("short", 9_000),
            run("longest", 90_000),
            run("long.a", 40_000),
            reduce(90_000, "default"),  # in which all wait for the latest
            reduce(9_000, "tp"),
            reduce(20_000, "dp"),
        ]
        for rank in range(10)
    }
    assert Replay.of(Machine(programs).record(tmp_path)).candidates() == (
        *(RankAsMedian(rank) for rank in (9, 8, 7, 6)),
        CommunicationScaled("dp", 0.5),
        Overlapped("dp"),
        CommunicationScaled("tp", 0.5),
        Overlapped("tp"),
        CudaGraphs("layers"),
        LaunchScaled(0.0),
        OperatorsScaled(0.7),
        KernelsScaled("longest", 0.8),
        KernelsScaled(r"long\.a", 0.8),
    )


@pytest.mark.parametrize(("slower", "named"), [(1_000, False), (1_100, True)])
def test_a_gpu_is_worth_mending_if_it_is_more_than_2_percent_slower(
    slower: int, named: bool, tmp_path: Path
) -> None:
    programs = {rank: [run("gemm", 49_000 + slower * (rank == 2)), sync()] for rank in range(4)}
    assert Replay.of(Machine(programs).record(tmp_path)).candidates() == (
        *([GpuAsMedian(2)] if named else []),
        CudaGraphs("layers"),
        LaunchScaled(0.0),
        OperatorsScaled(0.7),
        WithoutSynchronisation(),
        KernelsScaled("gemm", 0.8),
    )


def test_copies_of_pageable_memory_are_worth_trying_where_there_are_any(tmp_path: Path) -> None:
    without = CopiesScaled("pageable", 0.0)
    for pinned in (False, True):
        program = [copy(90_000, pinned=pinned), run("gemm", 9_000)]
        path = Machine({0: program}).record(tmp_path / str(pinned))
        assert (without in Replay.of(path).candidates()) is not pinned


def test_half_of_the_work_by_time_has_the_middle_slack_or_more() -> None:
    assert middle_slack(ints([0, 10, 20]), ints([7, 5, 8])) == 10
    assert middle_slack(ints([20, 0, 10]), ints([8, 7, 5])) == 10
    assert middle_slack(ints([5, 90]), ints([0, 1])) == 90
    assert middle_slack(ints([5]), ints([0])) == 0
    assert middle_slack(ints([-3]), ints([1])) == 0
