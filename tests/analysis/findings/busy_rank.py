# SPDX-License-Identifier: Apache-2.0
"""A rank that is busy, and what is found in its trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.analysis.run.analyse import analyze

MS = 1_000_000


def found(analysis: Analysis) -> dict[str, Finding]:
    return {finding.code: finding for finding in analysis.findings}


def one_rank(folder: Path, trace: TraceBuilder, **more: Any) -> dict[str, Finding]:
    return found(analyze(trace.write(folder / "rank-0.json"), **more))


def busy(**more: Any) -> TraceBuilder:
    """A step of 1 ms that computes nearly all the time, in kernels that are long."""
    trace = TraceBuilder(**more).step(1, 0, MS)
    for start in range(0, 980_000, 20_000):
        trace.gpu(GEMM, start + 10, start + 20_000, launch=max(0, start - 30_000))
    return trace
