# SPDX-License-Identifier: Apache-2.0
"""A GPU's rows on another clock than the CPU's, and those that only look like it."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_rows import MS, US, both, kernels, whole, work
from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.timeline.breakdown import Breakdown
from megatron.torch_trace.inspect.facts import problems
from megatron.torch_trace.report import sentences


@pytest.mark.parametrize(
    ("shift", "said"),
    [
        (-120 * US, "112 us"),
        (-20 * US, "12 us"),
        (-2_000 * MS, "2 s"),
        (-3 * 3_600_000 * MS, "10,800 s"),
    ],
)
def test_kernels_before_their_launches_are_on_another_clock(
    tmp_path: Path, shift: int, said: str
) -> None:
    result, seen = both(work(shift), tmp_path)
    sentence = (
        "20 of 20 GPU rows begin before the call that launched them: the GPU is on another clock "
        f"than the CPU, {said} or more apart, so the times of the GPU's work are unknown."
    )
    assert (result.breakdown, result.unknown) == (None, sentence)
    assert (result.window_ns, result.launches.clock_offset_ns) == (2 * MS, shift + 8 * US)
    launches = result.launches
    assert (launches.delay_median_ns, launches.depth_mean, launches.depth_max) == (None,) * 3
    assert launches.negative_delays == 20
    assert seen.has_faults
    assert sentence in problems(seen)
    codes = [finding.code for finding in whole(work(shift), tmp_path).findings]
    assert codes == ["gpu_on_another_clock"]


@pytest.mark.parametrize("shift", [2_000 * MS, 5 * 3_600_000 * MS])
def test_kernels_after_everything_else_are_on_another_clock(tmp_path: Path, shift: int) -> None:
    result, seen = both(work(shift), tmp_path)
    assert result.breakdown is None
    # Not "1,800 s an iteration".
    assert result.window_ns == 2 * MS
    assert "on another clock than the CPU" in str(result.unknown)
    assert seen.has_faults
    assert str(result.unknown) in problems(seen)


def test_kernels_after_the_wait_for_them_are_on_another_clock(tmp_path: Path) -> None:
    trace = work(120 * US)
    # Each waits for the kernel before it; the device is idle when it returns.
    for number in range(20):
        at = (30 + 50 * number) * US
        trace.call("cudaDeviceSynchronize", at, at + 20 * US)
    result, seen = both(trace, tmp_path)
    assert result.unknown == (
        "20 GPU rows begin after the CPU had waited for them: the GPU is on another clock than the "
        "CPU, 88 us or more apart, so the times of the GPU's work are unknown."
    )
    assert result.unknown in problems(seen)


def test_one_stream_on_another_clock_makes_utilisation_unknown(tmp_path: Path) -> None:
    trace = kernels(work(count=19), -120 * US, stream=9, count=4)
    result, seen = both(trace, tmp_path)
    assert str(result.unknown).startswith("4 of 23 GPU rows begin before the call")
    assert result.unknown in problems(seen)


def test_two_kernels_off_by_a_microsecond_are_noise_and_are_said(tmp_path: Path) -> None:
    trace = work()
    for at in (1_500 * US, 1_600 * US):
        trace.gpu(GEMM, at - US, at + 9 * US, launch=at)
    result, seen = both(trace, tmp_path)
    assert result.breakdown == Breakdown(620 * US, 0, 0, 1_380 * US)
    assert (result.launches.negative_delays, result.launches.negative_delay_ns) == (2, -US)
    assert not seen.has_faults
    assert (
        "Rank 0: 2 GPU rows of the window begin before the call that launched them, by up to 1 us; "
        "launch delays are off by as much."
    ) in sentences.notes(whole(trace, tmp_path))


def test_a_gpu_that_runs_behind_the_cpu_is_on_its_clock(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, MS)
    for number in range(20):
        start = (900 + 1_000 * number) * US
        trace.gpu(GEMM, start, start + 1_000 * US, launch=number * 20 * US)
    result, seen = both(trace, tmp_path)
    assert (result.unknown, seen.has_faults) == (None, False)
    assert result.window_ns == 20_900 * US


def test_work_that_queued_behind_work_that_was_cut_away_is_on_the_cpu_s_clock(
    tmp_path: Path,
) -> None:
    """A tool that keeps one iteration keeps its launches and what they launched, nothing before."""
    trace = TraceBuilder()
    for number in range(50):
        launch, start = 10 * US * number, 125 * MS + 151 * US * number
        trace.op("aten::mm", launch, launch + 9 * US)
        trace.gpu(GEMM, start, start + 150 * US, launch=launch)
    result, seen = both(trace, tmp_path)
    assert (result.unknown, result.launches.clock_offset_ns) == (None, None)
    assert result.breakdown == Breakdown(50 * 150 * US, 0, 0, 49 * US)
    assert (seen.clock_offset, seen.has_faults) == (None, False)


@pytest.mark.parametrize("hours", [-5, 5])
def test_few_kernels_hours_away_from_thousands_of_operators_are_on_another_clock(
    tmp_path: Path, hours: int
) -> None:
    trace = work(hours * 3_600_000 * MS)
    for number in range(5_000):
        trace.op("aten::view", number * 100, number * 100 + 50)
    result, seen = both(trace, tmp_path)
    assert result.odd_times == 0
    assert "on another clock than the CPU, 18,000 s or more" in str(result.unknown)
    assert result.unknown in problems(seen)
