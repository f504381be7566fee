# SPDX-License-Identifier: Apache-2.0
"""A window of two ranks, of which one is late, whose analyses are kept."""

from __future__ import annotations

from pathlib import Path

from trace_builder import GEMM, TraceBuilder


def trace(rank: int, *, world_size: int = 2, run: str = "20261127-221810") -> TraceBuilder:
    """Two steps with a product and three collectives; rank 1 is late in them."""
    own = {"run": run, "model_flops_per_iteration": 10**9}
    builder = TraceBuilder(rank, world_size, own=own).step(5, 0, 1000).step(6, 1000, 2000)
    builder.gpu(GEMM, 10, 500, launch=5)
    for number in range(3):
        at = 500 + 100 * number
        builder.collective(at - 30 * (number + 1) * (rank != 1), at + 20, size=world_size)
    return builder


def window_of_two(folder: Path) -> Path:
    """The folder of the window, with the traces of both ranks."""
    window = folder / "20261127-221810" / "iter-0000005-0000006"
    for rank in range(2):
        trace(rank).write(window / f"rank-{rank}.pt.trace.json")
    return window
