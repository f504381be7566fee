# SPDX-License-Identifier: Apache-2.0
"""A rank whose GPU was not recorded: what its GPU did is unknown, and not nothing."""

from __future__ import annotations

from pathlib import Path

from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.compare.comparison import compare
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.run.analyse import analyze


def two_ranks(folder: Path, *, recorded: tuple[bool, bool]) -> Analysis:
    """Both run one matrix product in one module, as far as that is recorded."""
    for rank, known in enumerate(recorded):
        trace = TraceBuilder(rank, 2, own={"coordinates": {"pp": 0}}).step(1, 0, 1000)
        trace.annotation("model: GPTModel", 10, 90)
        trace.annotation("decoder.layers.0: TransformerLayer", 20, 80)
        if known:
            trace.gpu(GEMM, 100, 300, launch=50)
        else:
            trace.call("cudaLaunchKernel", 50, 52, args={"correlation": 9})
        trace.write(folder / f"rank-{rank}.json")
    return analyze(folder, jobs=1)


def test_means_of_work_are_those_of_the_ranks_whose_gpu_was_recorded(tmp_path: Path) -> None:
    both = two_ranks(tmp_path / "both", recorded=(True, True))
    one = two_ranks(tmp_path / "one", recorded=(True, False))
    assert [rank.unknown is None for rank in one.ranks] == [True, False]
    assert one.summary.kernels == both.summary.kernels
    assert one.summary.operators == both.summary.operators
    assert [(stage.ranks, stage.total_ns) for stage in one.stages] == [((0,), 200)]


def test_a_comparison_with_them_shows_no_less_work(tmp_path: Path) -> None:
    both = two_ranks(tmp_path / "both", recorded=(True, True))
    one = two_ranks(tmp_path / "one", recorded=(True, False))
    answer = compare(both, one)
    tables = (answer.kernels, answer.families, answer.modules, answer.module_classes)
    assert [row.time.change for rows in tables for row in rows] == [0] * 6
    assert answer.different_work == ()
