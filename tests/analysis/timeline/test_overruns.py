# SPDX-License-Identifier: Apache-2.0
"""Durations that are seconds too long, as ROCm's tracer writes some, must not fill a timeline."""

from __future__ import annotations

from pathlib import Path

from trace_builder import TraceBuilder


def test_work_that_overruns_the_next_by_seconds_hides_no_idle_time(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.step(1, 0, 6_000_000_000)
    trace.gpu("too long", 100, 5_000_000_000).gpu("next", 300, 400).gpu("last", 700, 800)
    activity = trace.activity(tmp_path)
    assert list(zip(activity.gpu.start.tolist(), activity.gpu.end.tolist(), strict=True)) == [
        (100, 300), (300, 400), (700, 800),
    ]  # fmt: skip
    assert activity.odd_times == 1


def test_a_long_kernel_of_another_stream_is_left_alone(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.gpu("waits", 100, 5_000_000_000, stream=9).gpu("other", 300, 400)
    activity = trace.activity(tmp_path)
    assert activity.gpu.end.tolist() == [5_000_000_000, 400]
    assert activity.odd_times == 0
