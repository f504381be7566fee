# SPDX-License-Identifier: Apache-2.0
"""Segments of a rank beside those of its peers: their median, and what takes far longer."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine import Act, Machine, cpu, mark, reduce, run, sync

from megatron.torch_trace.analysis.replay.kernels.peer_segments import FarLonger, median_of
from megatron.torch_trace.analysis.replay.replay import Replay
from megatron.torch_trace.columns.intervals import ints


def test_of_two_peers_the_median_lies_between_and_who_has_none_is_not_counted() -> None:
    columns = [ints([10, 10, -1, -1]), ints([20, -1, 40, -1]), ints([90, -1, 60, -1])]
    assert median_of(columns[:2], ints([7] * 4)).tolist() == [15, 10, 40, 7]
    assert median_of(columns, ints([7] * 4)).tolist() == [20, 10, 50, 7]


def far(own: list[int], *peers: list[int]) -> list[int]:
    return FarLonger.of(ints(own), [ints(one) for one in peers]).which.nonzero()[0].tolist()


@pytest.mark.parametrize(
    ("own", "peers", "found"),
    [
        # By more than 10 us, and than peers differ by anywhere.
        ([110_000, 100_000], [[100_000, 100_000], [100_000, 100_000]], []),
        ([110_001, 100_000], [[100_000, 100_000], [100_000, 100_000]], [0]),
        ([150_000, 100_000], [[100_000, 60_000], [100_000, 120_000]], []),
        ([190_000, 100_000], [[100_000, 60_000], [100_000, 120_000]], [0]),
        # Less than 2 % of the rank's CPU time is luck, wherever it is.
        ([20_000, 1_500_000], [[100, 1_500_000]] * 2, []),
        ([40_000, 1_500_000], [[100, 1_500_000]] * 2, [0]),
        # Less than a quarter of what the rank takes longer: it is slower everywhere.
        ([120_000, *[109_000] * 7], [[100_000] * 8] * 2, []),
        ([140_000, *[109_000] * 7], [[100_000] * 8] * 2, [0]),
    ],
)
def test_a_segment_takes_far_longer_if_it_is_neither_luck_nor_a_slow_rank(
    own: list[int], peers: list[list[int]], found: list[int]
) -> None:
    assert far(own, *peers) == found


def test_one_peer_tells_luck_by_what_it_takes_longer_itself() -> None:
    peer = [130_000, 100_000, 100_000, 100_000]
    assert far([100_000, 140_000, 100_000, 100_000], peer) == [1]
    # Beside a stretch that is four times farther a smaller one is luck, too.
    assert far([100_000, 140_000, 300_000, 100_000], peer) == [2]
    # Of two peers there is no such doubt.
    others = [[100_000, 100_000, 100_000, 100_000], [100_000, 100_000, 130_000, 100_000]]
    assert far([100_000, 140_000, 300_000, 100_000], *others) == [1, 2]


def test_a_segment_has_its_peer_in_the_same_step(tmp_path: Path) -> None:
    """Rank 1 has one more kernel in its first step, so the n-th of the window is another one."""

    def step(work: int, times: int) -> list[Act]:
        return [act for _ in range(times) for act in (cpu(work), run("gemm", 9_000), sync())]

    programs = {
        rank: [*step(50_000, times), reduce(5_000), mark(), *step(90_000, 2), reduce(5_000)]
        for rank, times in enumerate((3, 4, 3))
    }
    found = Replay.of(Machine(programs).record(tmp_path)).found
    duration = found.graph.nodes.duration
    own = duration[found.ranks[0].first_point :][: len(found.ranks[0].points)]
    (column,) = found.peers.columns(0, [1], duration)
    assert [
        (mine, its)
        for mine, its in zip(own.tolist(), column.tolist(), strict=True)
        if mine > 20_000
    ] == [(50_000, 50_000)] * 3 + [(90_000, 90_000)] * 2
