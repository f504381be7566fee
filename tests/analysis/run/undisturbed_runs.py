# SPDX-License-Identifier: Apache-2.0
"""Runs that tell how long an iteration took without the profiler."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.format.undisturbed_iterations import (
    beside,
)

US, MS = 1_000, 1_000_000
BEFORE = [[n, 585 * MS] for n in range(2, 12)]
RUN = "20261127-221810"


def trace(
    *,
    recorded_ms: int = 693,
    idle_ms: int = 150,
    step: int = 12,
    rank: int = 0,
    world_size: int = 1,
    **own: Any,
) -> TraceBuilder:
    """One iteration; after `idle_ms` of Python the CPU launches one product, which fills it."""
    told = {"schema": 1, "run": RUN, "rank": rank, **own}
    made = TraceBuilder(rank, world_size, own=told).step(step, 0, recorded_ms * MS)
    return made.gpu(
        GEMM, idle_ms * MS, recorded_ms * MS, launch=idle_ms * MS - 10 * US, call="cudaLaunchKernel"
    )


def written(folder: Path, made: TraceBuilder, after: Iterable[Any] = (), **more: Any) -> Path:
    """A trace in a window's folder, and beside it what came after, if anything."""
    path = made.write(folder / RUN / "iter-0000012" / "rank-0.pt.trace.json")
    if after:
        told = {"schema": 1, "run": RUN, "rank": 0, "window": {"first": 12, "last": 12}}
        there = beside(path)
        there.parent.mkdir(exist_ok=True)
        there.write_text(json.dumps({**told, "undisturbed": list(after), **more}))
    return path


def findings(analysis: Analysis) -> dict[str, Finding]:
    return {finding.code: finding for finding in analysis.findings}
