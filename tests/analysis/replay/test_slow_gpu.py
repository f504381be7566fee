# SPDX-License-Identifier: Apache-2.0
"""A rank whose GPU is late: `--gpu R=median` is what mending it gives, and `analyze` names it."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine import Act, Machine, cpu, reduce, run, sync
from trace_builder import TraceBuilder

from megatron import torch_trace
from megatron.torch_trace.errors import UsageError

TURNS = 6
GEMM = 50_000


def machine(ranks: int = 3, *, spin: int = 0, slower: float = 1.0, name: str = "gemm") -> Machine:
    """Ranks whose GPUs differ by some us; rank 1's spins in turn 2, or is slower in all it does."""
    return Machine(
        {
            rank: [
                act
                for turn in range(TURNS)
                for act in (
                    cpu(20_000),
                    *([run("spin", spin)] if spin and (rank, turn) == (1, 2) else []),
                    run(
                        name if (rank, turn) == (1, 3) else "gemm",
                        round((GEMM + 500 * rank) * (slower if rank == 1 else 1)),
                    ),
                    reduce(8_000),
                    sync(),
                )
            ]
            for rank in range(ranks)
        }
    )


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("fault", [{"spin": 300_000}, {"slower": 1.6}], ids=["spin", "slower"])
def test_a_gpu_that_is_late_is_named_with_what_mending_it_gains(
    fault: dict[str, float], ranks: int, tmp_path: Path
) -> None:
    faulty, healthy = machine(ranks, **fault), machine(ranks)  # type: ignore[arg-type]
    path = faulty.record(tmp_path)
    grown = faulty.iteration_ns - healthy.iteration_ns
    answer = torch_trace.whatif(path, gpu="1=median")
    assert answer.recorded_ns - answer.simulated_ns == pytest.approx(grown, rel=0.05)
    found = next(
        one
        for one in torch_trace.analyze(path, gains=True).findings
        if one.change == "--gpu 1=median"
    )
    assert (found.code, found.gain_ns) == ("straggler", answer.recorded_ns - answer.simulated_ns)
    if "spin" in fault:
        (cause,) = found.evidence["causes"]
        assert (cause["rank"], cause["count"], cause["kernel"]) == (1, 1, "spin")
        assert "In an iteration, rank 1's GPU takes 0.3 ms longer" in found.title
        assert "in 1 stretch of `other` (spin)" in found.title


def test_a_kernel_that_a_library_chose_otherwise_is_no_more_work(tmp_path: Path) -> None:
    path = machine(name="gemm_2").record(tmp_path)
    answer = torch_trace.whatif(path, gpu="1=median")
    assert answer.simulated_ns == pytest.approx(answer.recorded_ns, abs=TURNS * 1_000)


def test_a_cpu_that_is_late_is_no_matter_of_the_gpu(tmp_path: Path) -> None:
    late: list[Act] = [cpu(300_000), run("gemm", GEMM), reduce(8_000), sync()]
    early = [cpu(20_000), *late[1:]]
    path = Machine({0: early, 1: late, 2: early}).record(tmp_path)
    answer = torch_trace.whatif(path, gpu="1=median")
    assert answer.simulated_ns == answer.recorded_ns


def test_a_rank_alone_has_no_peers(tmp_path: Path) -> None:
    path = machine(1).record(tmp_path)
    with pytest.raises(UsageError, match=r"^--gpu 0=median: no other rank does the same work"):
        torch_trace.whatif(path, gpu="0=median")


@pytest.mark.parametrize("flag", ["gpu", "rank"])
def test_of_more_ranks_than_can_be_replayed_the_named_one_is(flag: str, tmp_path: Path) -> None:
    for rank in range(18):
        trace = TraceBuilder(rank, 18).step(1, 0, 100_000)
        length = 90_000 if rank == 17 else 50_000
        trace.gpu("gemm", 20_000, 20_000 + length, launch=15_000)
        trace.write(tmp_path / f"rank-{rank:02}.json")
    answer = torch_trace.whatif(tmp_path, f"--{flag} 17=median", jobs=1)
    assert answer.ranks == 16
    assert answer.notes[0].startswith("The graph of kernels has 16 of the 18 ranks")
    # Of 16 ranks one has 10 us more than the step's 100 us.
    shorter = 10_000 // 16 if flag == "gpu" else 0
    assert answer.recorded_ns - answer.simulated_ns == shorter
