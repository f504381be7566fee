# SPDX-License-Identifier: Apache-2.0
"""Recorded runs whose cause is known: the analysis must name it."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.analysis.run.analyse import analyze


def findings(analysis: Analysis) -> dict[str, Finding]:
    return {f.code: f for f in reversed(analysis.findings)}


def check_straggler(folder: Path) -> None:
    analysis = analyze(folder)
    assert analysis.findings[0].code == "straggler"
    assert analysis.findings[0].evidence["rank"] == 2
    assert analysis.findings[0].evidence["dimension"] == "dp"
    worst = analysis.stragglers[0]
    assert (worst.rank, worst.last_arrivals, worst.calls) == (2, 19, 23)
    assert (worst.collective, worst.share_there) == ("reduce_scatter", 1.0)
    assert "On rank 2 the GPU waits 139 ms longer for the CPU" in analysis.findings[0].title
    assert max(c.error_ns or 0 for c in analysis.clocks) < 7_000


def check_loader(folder: Path) -> None:
    analysis = analyze(folder)
    assert analysis.findings[0].code == "data_loader_without_reserve"
    # The dataset sleeps 60 ms a sample. The loop, slowed by the profiler, never waits for it:
    # nothing may be said that would say so.
    assert 60e6 < analysis.findings[0].evidence["batch_ns"] < 70e6
    assert "data_loader" not in findings(analysis)
    assert sum(d.time_ns for d in analysis.ranks[0].host.data_loading) < 2e6


def check_experts(folder: Path) -> None:
    analysis = analyze(folder)
    assert analysis.findings[0].code == "exposed_communication_ep"
    rows = analysis.summary.communication
    assert max(rows, key=lambda row: row.time_ns).collective == "all_to_all"
    assert max(rows, key=lambda row: row.time_ns).dimension == "ep"


def check_launch_bound(folder: Path) -> None:
    analysis = analyze(folder)
    assert analysis.findings[0].code == "launch_bound"
    idle = analysis.summary.shares
    assert idle is not None
    assert 0.4 < idle.idle < 0.75


def check_pipeline(folder: Path) -> None:
    analysis = analyze(folder)
    entries = [entry for rank in analysis.ranks for entry in rank.pipeline]
    assert {(e.rank, e.stage, e.microbatches) for e in entries} == {
        (0, 0, 8),
        (1, 0, 8),
        (2, 1, 8),
        (3, 1, 8),
    }
    assert {e.ideal_share for e in entries} == {1 / 9}
    rows = [r for rank in analysis.ranks for r in rank.communication if r.dimension == "pp"]
    assert {row.collective for row in rows} <= {"send", "recv", "send_recv"}
    assert all(row.bytes for row in rows)
    assert "unknown" not in {r.dimension for rank in analysis.ranks for r in rank.communication}


def test_of_a_real_training_the_collector_is_the_cause_and_its_time_the_gain(samples: Path) -> None:
    analysis = analyze(samples / "analysis" / "collections", gains=True)
    cause, follows = analysis.findings[:2]
    assert (cause.code, follows.code, follows.cause) == (
        "garbage_collection", "launch_bound", "garbage_collection",
    )  # fmt: skip
    collections = analysis.ranks[0].host.collections
    assert collections is not None
    assert (collections.times, collections.unrecorded) == (2, 0)
    # Two collections stand in the critical path, and the GPU has nothing to do beside them.
    assert cause.gain_ns == follows.gain_ns
    assert cause.gain_ns == pytest.approx(collections.time_ns, rel=0.001)
    assert 0.99 * collections.time_ns < collections.idle_ns <= collections.time_ns


CASES = {
    "dp4-rank2-slow": check_straggler,
    "slow-dataloader": check_loader,
    "ep4-moe": check_experts,
    "dp4": check_launch_bound,
}


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_found_in_the_sample(name: str, samples: Path) -> None:
    CASES[name](samples / "analysis" / name)


def test_pipeline_send_and_receive_are_attributed_in_the_sample(samples: Path) -> None:
    check_pipeline(samples / "tp2pp2")


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_found_in_the_whole_recording(name: str, shared: Path) -> None:
    CASES[name](shared / "h200" / name)


def test_pipeline_send_and_receive_are_attributed_in_the_whole_recording(shared: Path) -> None:
    check_pipeline(shared / "h200" / "tp2pp2")


def test_of_eight_ranks_on_v100_rank_7_is_last_in_five_of_eight_collectives(shared: Path) -> None:
    analysis = analyze(shared / "public" / "dlrm-8-ranks-v100")
    last = {s.rank: s.last_arrivals for s in analysis.stragglers if s.last_arrivals}
    assert last == {7: 5, 5: 2, 4: 1}
    # Their ends are 1 to 7 us apart, and times are whole microseconds.
    assert max(c.error_ns or 0 for c in analysis.clocks) <= 1_000


def test_a_gpu_two_steps_behind_keeps_what_was_launched_before(shared: Path) -> None:
    analysis = analyze(shared / "public" / "ddp-stacks-mi300x.json.gz")
    (rank,) = analysis.ranks
    assert rank.launches.work_without_launch == 968
    assert sum(row.calls for row in rank.kernels) == 3653
    assert "launched_before_window" in findings(analysis)


def test_compute_of_the_a100_trace_is_what_trace_lens_says(shared: Path) -> None:
    analysis = analyze(shared / "public" / "nccl-args-a100.json.gz")
    breakdown = analysis.ranks[0].breakdown
    assert breakdown is not None
    assert round(breakdown.compute / 1e3, 1) == 115_655.8


@pytest.mark.parametrize(
    "name",
    ["h200/tp2pp2", "h200/dp4", "h200/ep4-moe", "h200/tp2pp2-stack", "public/eager-b200.json.gz",
     "public/ddp-stacks-mi300x.json.gz", "public/nccl-args-a100.json.gz",
     "public/dlrm-8-ranks-v100", "public/sampled_rank-0.json.gz"],
)  # fmt: skip
def test_all_eight_parts_are_there(name: str, shared: Path) -> None:
    analysis = analyze(shared / name)
    for rank in analysis.ranks:
        assert rank.breakdown is not None
        assert rank.breakdown.total == rank.window_ns
        assert rank.communication
        assert rank.kernels
        assert rank.families
        assert rank.operators
        assert rank.launches.launches
        assert rank.host.idle.total_ns == rank.breakdown.idle
    assert bool(analysis.stragglers) == (len(analysis.ranks) > 1 and analysis.matched_calls > 0)
    assert analysis.mfu.reason or analysis.mfu.value
