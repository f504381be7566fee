# SPDX-License-Identifier: Apache-2.0
"""What `whatif` answers beside the times: speed, error, changes by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine import Machine, cpu, reduce, run, sync

from megatron import torch_trace
from megatron.torch_trace.analysis.run.kept_analyses import keep
from megatron.torch_trace.analysis.run.whatif import Speed


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    programs = {
        rank: [cpu(20_000), run("gemm", 60_000), run("norm", 30_000), reduce(9_000), sync()]
        for rank in (0, 1)
    }
    return Machine(programs).record(tmp_path)


def test_mfu_grows_as_the_iteration_gets_shorter(recorded: Path) -> None:
    answer = torch_trace.whatif(recorded, "--kernel gemm*0.5", model_flops=1e9)
    assert answer.before.mfu is not None
    assert answer.after.mfu == pytest.approx(
        answer.before.mfu * answer.recorded_ns / answer.simulated_ns
    )
    unknown = torch_trace.whatif(recorded, "--kernel gemm*0.5")
    assert (unknown.before, unknown.after) == (Speed(None, None), Speed(None, None))


def test_several_changes_are_one_candidate_whose_error_is_the_answer_s(recorded: Path) -> None:
    answer = torch_trace.whatif(recorded, kernel=["gemm*0.5", "norm*0"], launch=0)
    assert answer.changes == ("--kernel gemm*0.5", "--kernel norm*0", "--launch 0")
    (candidate,) = answer.candidates
    assert candidate.change == " ".join(answer.changes)
    assert candidate.gain_ns == answer.replayed_ns - answer.simulated_ns >= 60_000
    assert answer.error_ns == candidate.error_ns


def test_without_a_change_the_error_is_what_the_graph_misses(recorded: Path) -> None:
    answer = torch_trace.whatif(recorded)
    assert (answer.simulated_ns, answer.error_ns, answer.changes) == (answer.recorded_ns, 0, ())
    assert [one.gain_ns for one in answer.candidates] == sorted(
        (one.gain_ns for one in answer.candidates), reverse=True
    )


def test_ranks_whose_traces_are_gone_are_not_in_the_graph_of_the_others(recorded: Path) -> None:
    gone = max(recorded.rglob("rank-*"))
    keep([gone])
    gone.unlink()
    answer = torch_trace.whatif(recorded, "--kernel gemm*0.5")
    assert (answer.graph, answer.ranks) == ("kernels", 1)
    assert answer.simulated_ns < answer.recorded_ns
