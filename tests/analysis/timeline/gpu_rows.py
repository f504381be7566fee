# SPDX-License-Identifier: Apache-2.0
"""Steps of GPU work, and what check, info and analyze say of them."""

from __future__ import annotations

from pathlib import Path

from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace import analyze
from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.run.rank import analyse_rank
from megatron.torch_trace.analysis.timeline.breakdown import Breakdown
from megatron.torch_trace.inspect.survey import Survey, survey

US = 1_000
MS = 1_000 * US


def both(trace: TraceBuilder, folder: Path) -> tuple[RankResult, Survey]:
    """What `analyze` and what `check` and `info` make of a trace."""
    path = trace.write(folder / "rank-0.json")
    return analyse_rank(path).result, survey(path, crossing=True)


def whole(trace: TraceBuilder, folder: Path) -> Analysis:
    return analyze(trace.write(folder / "rank-0.json"))


def work(shift: int = 0, *, stream: int = 7, count: int = 20) -> TraceBuilder:
    """Two steps of a millisecond; a kernel of 30 us runs 8 us after each launch, as shifted."""
    trace = TraceBuilder().step(3, 0, MS).step(4, MS, 2 * MS)
    return kernels(trace, shift, stream=stream, count=count)


def kernels(trace: TraceBuilder, shift: int, *, stream: int, count: int = 20) -> TraceBuilder:
    for number in range(count):
        launch = (10 + 50 * number) * US
        start = launch + 8 * US + shift
        trace.op("aten::mm", launch - US, launch + 5 * US)
        trace.gpu(GEMM, start, start + 30 * US, launch=launch, stream=stream)
    return trace


KNOWN = Breakdown(600 * US, 0, 0, 1_400 * US)
