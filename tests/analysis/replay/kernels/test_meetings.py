# SPDX-License-Identifier: Apache-2.0
"""Where ranks meet: who takes part in a collective, and how long its data move."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from megatron.torch_trace.analysis.replay.change import CommunicationScaled
from megatron.torch_trace.analysis.replay.replay import Replay

Calls = list[tuple[int, int]]
SAME: Calls = [(300_000, 310_000), (400_000, 410_000), (500_000, 510_000)]
"""Collectives that end at one time on both ranks: their clocks are the same."""


def replayed(folder: Path, *ranks: Calls) -> Replay:
    """Ranks whose all-reduces begin and end then; the CPU waits for each of them."""
    for rank, calls in enumerate(ranks):
        trace = TraceBuilder(rank, len(ranks))
        for start, end in calls:
            trace.collective(start, end, launch=start - 5_000, size=len(ranks))
        trace.step(1, 0, 600_000).write(folder / f"rank-{rank}.json")
    return Replay.of(folder)


@pytest.mark.parametrize(("left", "joined"), [(85_000, 4), (79_999, 3)])
def test_a_rank_that_left_more_than_20_us_before_the_last_one_came_was_in_another_call(
    left: int, joined: int, tmp_path: Path
) -> None:
    early: Calls = [(50_000, left), *SAME]
    late: Calls = [(100_000, 130_000), *SAME]
    replay = replayed(tmp_path, early, late)
    met = sum(int(one.sum()) for one in replay.found.joined.met)
    assert (replay.found.joined.calls, met) == (4, 2 * joined + (joined == 3))


def test_data_move_from_when_the_last_has_come_to_when_the_first_leaves(tmp_path: Path) -> None:
    early: Calls = [(50_000, 140_000), *SAME]
    late: Calls = [(100_000, 120_000), *SAME]
    replay = replayed(tmp_path, early, late)
    durations = replay.found.graph.nodes.duration[replay.found.joined.nodes[0]]
    assert durations.tolist() == [20_000, 10_000, 10_000, 10_000]
    assert replay.error_ns == 0
    assert replay.simulate([CommunicationScaled("dp", 0.5)]).iteration_ns == replay.recorded_ns
