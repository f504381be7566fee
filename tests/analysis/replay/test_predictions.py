# SPDX-License-Identifier: Apache-2.0
"""What was predicted of a recorded run, held against runs that were made afterwards.

The recorded run is `tp2pp2` of `benchmarks/pairs.py`, made smaller; times are medians of iterations
without the profiler, as `benchmarks/predictions.py compare` has them (docs/benchmarks.md).
"""

from __future__ import annotations

import pytest
from recorded_traces import SAMPLES

from megatron import torch_trace

UNDISTURBED_MS = 307.6


@pytest.mark.parametrize(
    ("change", "measured_ms", "within"),
    [("--micro-batches 16", 556.7, 0.02), ("--virtual-stages 2", 270.7, 0.08)],
)
def test_a_changed_schedule_is_predicted_in_proportion(
    change: str, measured_ms: float, within: float
) -> None:
    answer = torch_trace.whatif(SAMPLES / "tp2pp2-pair", change)
    predicted = UNDISTURBED_MS * answer.simulated_ns / answer.replayed_ns
    assert predicted == pytest.approx(measured_ms, rel=within)
    assert (predicted < UNDISTURBED_MS) == (measured_ms < UNDISTURBED_MS)
