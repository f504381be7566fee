# SPDX-License-Identifier: Apache-2.0
"""Faults of a real training (benchmarks/recorded_faults.py): the rank, the span, and what it costs.

The costs are medians of iterations without the profiler, with the fault less without it
(docs/benchmarks.md).
"""

from __future__ import annotations

import pytest
from recorded_traces import SAMPLES

from megatron import torch_trace

pytestmark = pytest.mark.slow

MS = 1_000_000


@pytest.mark.parametrize(
    ("sample", "rank", "span", "sleep_ms", "cost_ms"),
    [
        ("backward-40", 1, "backward micro-batch 3", 40, 41.7),
        ("data-80", 0, "forward micro-batch 2", 80, 88.3),
    ],
)
def test_a_rank_that_slept_is_named_and_the_error_holds_what_it_cost(
    sample: str, rank: int, span: str, sleep_ms: int, cost_ms: float
) -> None:
    analysis = torch_trace.analyze(SAMPLES / "dp2-late" / sample, gains=True)
    found = next(one for one in analysis.findings if one.code == "straggler")
    assert found.change == f"--rank {rank}=median"
    (cause,) = found.evidence["causes"]
    assert (cause["rank"], cause["name"], cause["count"]) == (rank, span, 3)
    assert cause["time_ns"] == pytest.approx(3 * sleep_ms * MS, rel=0.02)
    assert found.gain_ns is not None
    assert found.gain_error_ns is not None
    assert found.sure_gain_ns
    assert abs(found.gain_ns - cost_ms * MS) <= 2 * found.gain_error_ns


def test_batches_that_came_late_are_a_finding_with_the_same_gain() -> None:
    analysis = torch_trace.analyze(SAMPLES / "dp2-late" / "data-80", gains=True)
    loader = next(one for one in analysis.findings if one.code == "data_loader")
    assert loader.gain_ns == pytest.approx(80 * MS, rel=0.1)
