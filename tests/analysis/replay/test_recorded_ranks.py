# SPDX-License-Identifier: Apache-2.0
"""Which ranks are replayed, and why a trace cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.replay.recorded_ranks import chosen, read_ranks, replayable
from megatron.torch_trace.errors import UsageError


def names(count: int) -> list[Path]:
    return [Path(f"rank-{rank:02}.pt.trace.json") for rank in range(count)]


@pytest.mark.parametrize(
    ("count", "wanted", "kept"),
    [
        (16, [], range(16)),
        (17, [], range(16)),
        (32, [20], [*range(15), 20]),
        (32, [30, 3, 20], [*range(14), 20, 30]),
        (32, [99], range(16)),
        (40, range(10, 40), range(10, 26)),
    ],
)
def test_of_many_ranks_those_that_are_wanted_and_then_the_first_ones_are_replayed(
    count: int, wanted: list[int], kept: list[int]
) -> None:
    traces = names(count)
    assert chosen(traces, wanted) == [traces[rank] for rank in kept]


def trace(rank: int | None) -> TraceBuilder:
    return TraceBuilder(rank, 2).step(5, 0, 100_000).gpu(GEMM, 20_000, 90_000, launch=2_000)


def test_a_trace_that_tells_no_rank_gets_the_first_number_that_is_free(tmp_path: Path) -> None:
    told = trace(1).write(tmp_path / "a.json")
    untold = trace(None).write(tmp_path / "b.json")
    read: list[Path] = []
    found = read_ranks([told, untold], progress=read.append)
    assert {rank: one.activity.path for rank, one in found.items()} == {1: told, 0: untold}
    assert read == [told, untold]


NO_CALL = (
    "nothing tells which call launched which work; a replay needs the runtime's calls "
    "(cuda_runtime) with their correlation"
)


@pytest.mark.parametrize(
    ("built", "reason"),
    [
        (TraceBuilder(0, 1).step(1, 0, 90_000).gpu(GEMM, 20_000, 40_000), NO_CALL),
        (
            TraceBuilder(0, 1).gpu(GEMM, 20_000, 40_000, launch=2_000),
            "no ProfilerStep, so nothing tells where an iteration begins",
        ),
        (
            TraceBuilder(0, 1).step(1, 0, 9_000).op("aten::mm", 0, 5_000),
            "no GPU work; record on a GPU, with --torch-profile-activities cpu cuda",
        ),
    ],
)
def test_what_a_trace_lacks_is_said(built: TraceBuilder, reason: str, tmp_path: Path) -> None:
    path = built.write(tmp_path / "rank-0.json")
    with pytest.raises(UsageError) as refused:
        read_ranks([path])
    assert str(refused.value) == f"nothing can be replayed: {path}: {reason}."


def test_times_of_two_clocks_tell_no_launch(tmp_path: Path) -> None:
    timeline = trace(0).timeline(tmp_path)
    assert replayable(timeline) is timeline
    timeline.clock_offset = 7_000
    assert replayable(timeline) == (
        "GPU and CPU are on different clocks, so no launch can be placed"
    )
