# SPDX-License-Identifier: Apache-2.0
"""Small windows that are compared."""

from __future__ import annotations

from pathlib import Path

from click.testing import Result
from command_line import invoked
from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.compare.comparison import Comparison, compare
from megatron.torch_trace.analysis.run.analyse import analyze

MS = 1_000_000
HOSTILE = "</script><img src=x onerror=alert(1)>"


def window(
    folder: Path,
    gemm_ms: tuple[int, ...] = (4,),
    *,
    ranks: int = 2,
    kernel: str = GEMM,
    length_ms: int = 10,
    argv: list[str] | None = None,
    extra: str | None = None,
) -> Path:
    """Ranks with one kernel an iteration, of so many ms in each, and a collective behind it."""
    for rank in range(ranks):
        trace = TraceBuilder(rank, ranks, own={"argv": argv} if argv else None)
        for number, length in enumerate(gemm_ms):
            start = number * length_ms * MS
            end = start + length_ms * MS
            trace.step(number, start, end)
            trace.gpu(kernel, start + MS, start + (1 + length) * MS, launch=start + 100)
            trace.collective(end - 2 * MS, end - MS, launch=start + 200)
            if extra:
                trace.gpu(extra, end - MS, end, launch=start + 300)
        trace.write(folder / f"rank-{rank}.json")
    return folder


def comparison(a: Path, b: Path) -> Comparison:
    return compare(analyze(a, jobs=1), analyze(b, jobs=1))


def run(*arguments: str | Path) -> Result:
    return invoked("compare", *arguments, "--jobs", "1")
