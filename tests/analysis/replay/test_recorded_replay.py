# SPDX-License-Identifier: Apache-2.0
"""Recorded iterations replayed: their lengths, the starts of kernels, and a fault that is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from recorded_traces import SAMPLES, SHARED

from megatron.torch_trace.analysis.replay.change import LaunchScaled, RankAsMedian
from megatron.torch_trace.analysis.replay.effects.adjustment import Adjustment
from megatron.torch_trace.analysis.replay.replay import Replay

pytestmark = pytest.mark.slow

FOLDERS = [
    *(
        SAMPLES / name
        for name in (
            "tp2pp2",
            "tp2pp2-stack",
            "tp2pp2-spans",
            "pp2-recompute-spans",
            "pp4-interleaved-spans",
            "dp2-spans",
            "ep2-spans",
            "analysis/dp4",
            "analysis/dp4-rank2-slow",
            "analysis/ep4-moe",
            "analysis/slow-dataloader",
        )
    ),
    *sorted(
        one
        for one in (SHARED / "h200").glob("*")
        if one.is_dir() and one.name != "dp4-large" and SHARED.is_dir()
    ),
]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda one: f"{one.parent.name}/{one.name}")
@pytest.mark.parametrize("usual", [False, True], ids=["recorded latencies", "usual latencies"])
def test_each_step_of_each_rank_is_replayed_within_half_a_percent(
    folder: Path, usual: bool
) -> None:
    replay = Replay.of(folder)
    found = replay.found
    result = replay.evaluated(Adjustment.none(found), usual=usual)
    for rank, steps in zip(found.ranks, result.steps, strict=True):
        recorded = [step.end - step.start for step in rank.timeline.window.steps]
        assert np.abs(steps / np.array(recorded) - 1).max() < 0.005
    starts = np.concatenate([rank.starts for rank in found.ranks])
    late = (result.times - found.graph.nodes.time)[starts]
    assert np.percentile(late, 99) < 50_000
    # Usual latencies leave out a few returns of synchronisations that took long.
    assert np.percentile(late, 1) > (-2_000_000 if usual else -1_000_000)


def test_a_rank_that_sleeps_48_ms_would_gain_them_and_the_path_runs_over_it() -> None:
    replay = Replay.of(SAMPLES / "analysis" / "dp4-rank2-slow")
    assert replay.candidates()[0] == RankAsMedian(2)
    result = replay.simulate([RankAsMedian(2)])
    gain = replay.simulated_ns - result.iteration_ns
    assert abs(gain - 48_000_000) < 0.1 * 48_000_000
    assert result.error_ns < gain
    path = replay.critical_path()
    over = sum(piece.time_ns for piece in path if piece.rank == 2)
    assert over > 0.9 * sum(piece.time_ns for piece in path)


def test_sends_and_receives_of_both_stages_meet() -> None:
    replay = Replay.of(SAMPLES / "tp2pp2")
    # Eight micro-batches go to the second stage and back, on both tensor-parallel ranks.
    assert replay.found.joined.messages == 2 * 2 * 8
    assert replay.absent_calls == 0


def test_the_path_names_micro_batches() -> None:
    replay = Replay.of(SAMPLES / "tp2pp2-spans")
    names = [piece.name for piece in replay.simulate([LaunchScaled(0.5)]).critical_path]
    assert "forward micro-batch 1 (steady)" in names
    assert "optimizer" in names
