# SPDX-License-Identifier: Apache-2.0
"""Parts and rows of two analyses: for an iteration and a rank, unknown where nothing tells."""

from __future__ import annotations

from pathlib import Path

import pytest
from compared_windows import MS, comparison, window
from trace_builder import GEMM, TraceBuilder


def two_collectives(folder: Path, tp_ms: int, dp_ms: int, *, steps: int = 2) -> Path:
    """Two ranks that reduce for so long in each step of 40 ms."""
    for rank in (0, 1):
        trace = TraceBuilder(rank, 2)
        for number in range(steps):
            start = 40 * number * MS
            trace.step(number, start, start + 40 * MS)
            trace.gpu(GEMM, start + MS, start + 2 * MS, launch=start + 100)
            trace.collective(
                start + 5 * MS, start + (5 + tp_ms) * MS, launch=start + 200, dimension="tp",
                nelems=1_000_000,
            )  # fmt: skip
            trace.collective(
                start + 20 * MS, start + (20 + dp_ms) * MS, launch=start + 300, nelems=2_000_000
            )
        trace.write(folder / f"rank-{rank}.json")
    return folder


def test_collectives_are_for_an_iteration_by_the_size_of_their_change(tmp_path: Path) -> None:
    found = comparison(
        two_collectives(tmp_path / "a", 4, 9), two_collectives(tmp_path / "b", 5, 6, steps=3)
    )
    rows = [
        (one.dimension, one.calls.after, one.time.before, one.time.after, one.bytes.after)
        for one in found.communication
    ]
    assert rows == [
        ("dp", 1, 9 * MS, 6 * MS, 4_000_000),
        ("tp", 1, 4 * MS, 5 * MS, 2_000_000),
    ]
    # Of two ranks a reduction moves every byte once: 4 MB in 9 ms, whatever the steps.
    assert found.communication[0].busbw.before == pytest.approx(4_000_000 / (9 * MS))
    total = found.breakdown["communication"]
    assert (total.before, total.after) == (13 * MS, 11 * MS)
    assert (found.dimensions["dp"].before, found.dimensions["dp"].after) == (9 * MS, 6 * MS)


def test_a_rank_whose_gpu_is_unknown_has_no_parts(tmp_path: Path) -> None:
    blind = TraceBuilder(0, 2).step(0, 0, 10 * MS).gpu(GEMM, MS, 2 * MS, launch=5)
    for at in range(20):
        blind.call("cudaLaunchKernel", at, at + 1, args={"correlation": 1000 + at})
    found = comparison(window(tmp_path / "a"), blind.write(tmp_path / "b" / "rank-0.json"))
    names = ("compute", "idle", "idle: cpu", "communication")
    parts = {name: found.breakdown[name] for name in names} | {"dp": found.dimensions["dp"]}
    assert [name for name, one in parts.items() if one.before is None] == []
    assert [name for name, one in parts.items() if one.after is not None] == []


def test_a_window_without_steps_is_one_iteration(tmp_path: Path) -> None:
    trace = TraceBuilder(0, 1).gpu(GEMM, MS, 5 * MS, launch=0).gpu(GEMM, 6 * MS, 8 * MS, launch=10)
    bare = trace.write(tmp_path / "bare" / "rank-0.json")
    found = comparison(window(tmp_path / "a", ranks=1), bare)
    compute = found.breakdown["compute"]
    assert (compute.before, compute.after) == (4 * MS, 6 * MS)
    assert found.iteration.after is not None
    assert found.iteration.after >= 7 * MS


def test_names_are_told_only_of_kernels_that_have_several(tmp_path: Path) -> None:
    a = window(tmp_path / "a", kernel="triton_poi_fused_add_1", extra="plain")
    b = window(tmp_path / "b", kernel="triton_poi_fused_add_2", extra="plain")
    names = {one.name: one.names for one in comparison(a, b).kernels}
    assert names["triton_poi_fused_add_1"] == ("triton_poi_fused_add_1", "triton_poi_fused_add_2")
    assert names["plain"] == ()
