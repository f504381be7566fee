# SPDX-License-Identifier: Apache-2.0
"""`--overlap`: nobody waits for communication, but compute beside it takes longer."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine import Act, Machine, cpu, reduce, run, sync

from megatron import torch_trace
from megatron.torch_trace.analysis.replay.effects.overlap import LONGER_COMPUTE

GEMM, TRANSFER = 400_000, 100_000


def program(cpu_ns: int) -> list[Act]:
    return [
        *(act for _ in range(4) for act in (cpu(cpu_ns), run("gemm", GEMM), reduce(TRANSFER))),
        run("gemm", GEMM),
        sync(),
    ]


def test_a_gain_of_overlap_is_less_than_the_transfers(tmp_path: Path) -> None:
    path = Machine({rank: program(2_000) for rank in range(2)}).record(tmp_path)
    answer = torch_trace.whatif(path, "--overlap dp")
    gain = answer.recorded_ns - answer.simulated_ns
    # Between kernels there is a gap of 1.5 us, and a transfer has two of them.
    assert gain == pytest.approx(4 * TRANSFER * (1 - LONGER_COMPUTE), rel=0.04)
    (candidate,) = answer.candidates
    assert candidate.error.ranks is not None
    assert candidate.error.ranks >= 4 * TRANSFER * LONGER_COMPUTE
    assert candidate.is_distinguishable


def test_where_the_cpu_is_late_compute_beside_communication_costs_nothing(tmp_path: Path) -> None:
    path = Machine({rank: program(3_000_000) for rank in range(2)}).record(tmp_path)
    answer = torch_trace.whatif(path, "--overlap dp")
    assert 0 <= answer.recorded_ns - answer.simulated_ns <= TRANSFER
    assert not answer.candidates[0].is_distinguishable


def test_communication_that_is_beside_compute_already_costs_nothing_more(tmp_path: Path) -> None:
    """The recorded kernels are the longer ones already."""
    path = Path(__file__).parents[2] / "data" / "dp2-spans"
    assert torch_trace.whatif(path, "--overlap dp").simulated_ns <= 1.001 * (
        torch_trace.whatif(path).replayed_ns
    )


def test_changes_before_and_after_overlap_do_not_make_its_error(tmp_path: Path) -> None:
    path = Machine({rank: program(2_000) for rank in range(2)}).record(tmp_path)
    errors = [
        torch_trace.whatif(path, *changes).error_ns
        for changes in (
            ("--overlap dp", "--kernel gemm*0.5"),
            ("--kernel gemm*0.5", "--overlap dp"),
        )
    ]
    assert errors[0] == pytest.approx(errors[1], rel=0.3)


def test_ranks_without_a_trace_are_said_for_transfers_gain_less_than_is_told(
    tmp_path: Path,
) -> None:
    path = Machine({rank: program(2_000) for rank in range(3)}).record(tmp_path)
    told = (
        "8 kernels of collectives had partners in ranks without a trace: what they waited for "
        "these counts as communication, so a change of the communication gains less than is told."
    )
    two = [path / f"rank-{rank}.json" for rank in (0, 1)]
    assert told in torch_trace.whatif(two, "--overlap dp").notes
    notes = torch_trace.whatif(path, "--overlap dp").notes
    assert not any("without a trace" in note for note in notes)
