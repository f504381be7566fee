# SPDX-License-Identifier: Apache-2.0
"""A CPU that waits for the GPU in each micro-batch, and is behind after each of these waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import GEMM, TraceBuilder

from megatron import torch_trace
from megatron.torch_trace.analysis.results.analysis import Finding

US = 1_000
LAUNCH = 60 * US
"""The CPU's time for one kernel."""


def trained(
    rank: int = 0, *, microbatches: int = 4, waits: int = 4, world_size: int = 1
) -> TraceBuilder:
    """An iteration of micro-batches, of which the first `waits` end with `.item()`.

    Each has 40 kernels of 10 us, for which the CPU is too slow, and 40 of 200 us.
    """
    own = {"argv": ["pretrain_gpt.py", "--micro-batch-size", "1"]}
    trace = TraceBuilder(rank, world_size, own=own)
    cpu = gpu = 0
    for number in range(microbatches):
        for length in [10 * US] * 40 + [200 * US] * 40:
            trace.op("aten::mm", cpu, cpu + 55 * US)
            gpu = max(gpu, cpu + 46 * US)
            trace.gpu(GEMM, gpu, gpu + length, launch=cpu + 40 * US)
            cpu, gpu = cpu + LAUNCH, gpu + length
        if number < waits:
            trace.op("aten::item", cpu, gpu + 12 * US)
            trace.call("cudaStreamSynchronize", cpu + 5 * US, gpu + 8 * US)
            cpu = gpu + 15 * US
    return trace.step(3, 0, max(cpu, gpu))


def launch_bound(folder: Path, *traces: TraceBuilder) -> Finding | None:
    for rank, one in enumerate(traces):
        one.write(folder / f"rank-{rank}.json")
    found = torch_trace.analyze(folder).findings
    return next((one for one in found if one.code == "launch_bound"), None)


def test_a_wait_in_each_micro_batch_is_named_before_launches(tmp_path: Path) -> None:
    finding = launch_bound(tmp_path, trained())
    assert finding is not None
    assert finding.title.endswith(
        "The job is launch-bound: 320 compute kernels in each iteration. The CPU also waits for "
        "the GPU in cudaStreamSynchronize (in aten::item), 4 times and 22.6 ms in each iteration; "
        "after each of these waits nothing is launched ahead."
    )
    assert finding.evidence["waits_in"] == "cudaStreamSynchronize"
    assert finding.evidence["waits_caller"] == "aten::item"
    assert finding.advice.startswith("Take the synchronisation out of the training loop:")
    assert "Launch less: capture the iteration in CUDA graphs" in finding.advice


@pytest.mark.parametrize("waits", [0, 1])
def test_the_wait_at_the_end_of_an_iteration_is_usual(tmp_path: Path, waits: int) -> None:
    finding = launch_bound(tmp_path, trained(microbatches=1, waits=waits))
    assert finding is not None
    assert "also waits" not in finding.title
    assert finding.advice.startswith("Launch less:")
    assert "waits_in" not in finding.evidence


def test_without_the_waits_the_cpu_keeps_its_lead(tmp_path: Path) -> None:
    assert launch_bound(tmp_path, trained(waits=0)) is None


def test_where_one_rank_does_not_wait_the_others_may_wait_for_that_rank(tmp_path: Path) -> None:
    waiting = trained(0, world_size=2)
    late = TraceBuilder(1, 2).step(3, 0, 45_000 * US)
    for at in range(0, 45_000 * US, 60 * US):
        late.op("aten::mm", at, at + 55 * US).gpu(
            GEMM, at + 46 * US, at + 56 * US, launch=at + 40 * US
        )
    finding = launch_bound(tmp_path, waiting, late)
    assert finding is not None
    assert "also waits" not in finding.title
