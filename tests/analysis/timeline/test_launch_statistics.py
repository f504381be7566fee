# SPDX-License-Identifier: Apache-2.0
"""How the CPU feeds the GPU in a window, event by event: the whole answer is compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import arrow, call, kernel, launch, op, step, text, write

from megatron.torch_trace.analysis.timeline.activity import read_activity
from megatron.torch_trace.analysis.timeline.code_columns import rows_with
from megatron.torch_trace.analysis.timeline.launches import LaunchStatistics, launch_statistics
from megatron.torch_trace.analysis.timeline.missing_links import is_unlinked
from megatron.torch_trace.analysis.timeline.timeline import Timeline, timeline_of
from megatron.torch_trace.columns.intervals import ints


def timeline(folder: Path, *events: str) -> Timeline:
    found = timeline_of(read_activity(write(folder / "rank-3.json", text(*events))))
    assert found is not None
    return found


def test_only_launches_and_work_of_the_window_count(tmp_path: Path) -> None:
    found = timeline(
        tmp_path,
        kernel("before", 20_000, 60_000, 5),
        kernel("reaches in, launched before", 90_000, 110_000, 6),
        step(1, 100_000, 1_000_000),
        launch(110_000, 115_000, 7),
        kernel("gemm", 120_000, 150_000, 7),
        launch(200_000, 210_000, 8),
        kernel("gemm", 260_000, 300_000, 8),
        launch(300_000, 304_000, 9),
        call("cudaEventRecord", 310_000, 390_000, args={"correlation": 10}),
        launch(1_100_000, 1_105_000, 11),
        kernel("behind", 1_110_000, 1_120_000, 11),
    )
    assert (found.window.start, found.window.end) == (100_000, 1_000_000)
    statistics = launch_statistics(
        found.activity, found.launches, found.window, found.devices.served_elsewhere
    )
    assert statistics == LaunchStatistics(
        launches=3,
        kernel_launches=3,
        without_kernel=1,
        captured=0,
        captured_steps=(),
        work_without_launch=1,
        work_without_link=0,
        delay_median_ns=60_000,
        delay_p90_ns=60_000,
        delay_max_ns=60_000,
        negative_delays=0,
        negative_delay_ns=0,
        clock_offset_ns=None,
        depth_mean=140_000 / 900_000,
        depth_max=1,
        calls_ns=19_000,
    )


@pytest.mark.parametrize(("category", "launched"), [("ac2g", 110_000), ("fwdbwd", -1)])
def test_only_arrows_from_the_cpu_to_the_gpu_tell_a_launch(
    tmp_path: Path, category: str, launched: int
) -> None:
    begin = call("cudaLaunchKernel", 110_000, 115_000)
    work = op("gemm", 120_000, 150_000, cat="kernel", pid=0, tid=7, args={"device": 0, "stream": 7})
    found = timeline(
        tmp_path, step(1, 100_000, 1_000_000), begin, work, *arrow(7, begin, work, category)
    )
    assert found.launches.time.tolist() == [launched]


@pytest.mark.parametrize("count", [2, 3])
def test_a_row_without_a_code_holds_none_of_them(count: int) -> None:
    column = ints([-1, 0, count - 1, -1])
    assert rows_with(column, [count - 1], count).tolist() == [False, False, True, False]


@pytest.mark.parametrize(("correlated", "unlinked"), [(2, False), (1, True), (0, True)])
def test_launches_are_looked_for_where_most_of_the_work_has_no_correlation(
    tmp_path: Path, correlated: int, unlinked: bool
) -> None:
    rows = [kernel("gemm", at, at + 10, number) for at, number in ((500, 1), (600, 2))]
    rows += [kernel("gemm", at, at + 10, 0) for at in (700, 800)]
    if correlated < 2:
        rows.pop(correlated)
    path = write(tmp_path / "rank-3.json", text(launch(100, 200, 1 if correlated else 0), *rows))
    assert is_unlinked(read_activity(path)) == unlinked
