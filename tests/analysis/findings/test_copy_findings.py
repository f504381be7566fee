# SPDX-License-Identifier: Apache-2.0
"""Copies that nothing hides, and those that the CPU waits for."""

from __future__ import annotations

from pathlib import Path

import pytest
from busy_rank import MS, busy, one_rank
from trace_builder import GEMM, TraceBuilder


def waiting_copy(way: str) -> TraceBuilder:
    """In a second step a call copies for 0.15 ms, and returns when the GPU has."""
    trace = busy().step(2, MS, 2 * MS).op("aten::to", MS, MS + 151_000)
    name = f"Memcpy {way}"
    trace.gpu(name, MS + 50_000, MS + 150_000, launch=None, cat="gpu_memcpy")
    number = {"correlation": trace.correlation}
    trace.call("cudaMemcpyAsync", MS + 1_000, MS + 149_000, args=number)
    return trace.gpu(GEMM, MS + 160_000, 2 * MS, launch=MS + 155_000)


def test_copies_of_pageable_memory_that_the_cpu_waits_for(tmp_path: Path) -> None:
    finding = one_rank(tmp_path, waiting_copy("HtoD (Pageable -> Device)"))["pageable_copies"]
    assert finding.title == (
        "For 7.4 % of the window the CPU waits for the GPU in copies of pageable memory (rank 0), "
        "most of that time in aten::to: 0.5 times and 0.074 ms in each iteration."
    )
    assert finding.evidence == {
        "share": 0.074, "caller": "aten::to", "calls": 1, "time_ns": 148_000,
    }  # fmt: skip


@pytest.mark.parametrize("way", ["HtoD (Pinned -> Device)", "DtoH (Device -> Pageable)"])
def test_pinned_memory_and_results_that_the_cpu_asks_for_are_no_such_copies(
    tmp_path: Path, way: str
) -> None:
    assert "pageable_copies" not in one_rank(tmp_path, waiting_copy(way))


def test_copies_that_nothing_hides(tmp_path: Path) -> None:
    trace = busy().step(2, MS, 2 * MS)
    trace.gpu(
        "Memcpy HtoD (Pageable -> Device)", MS, MS + 200_000, launch=MS - 50, cat="gpu_memcpy"
    )
    trace.gpu(GEMM, MS + 200_000, 2 * MS, launch=MS - 40)
    finding = one_rank(tmp_path, trace)["memory_copies"]
    assert "exposed for 10 % of the window" in finding.title
    assert finding.evidence["name"] == "Memcpy HtoD (Pageable -> Device)"
