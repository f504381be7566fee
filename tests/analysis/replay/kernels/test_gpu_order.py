# SPDX-License-Identifier: Apache-2.0
"""What lets work of the GPU begin: its launch, its stream, another stream, or room on the GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from trace_builder import TraceBuilder

from megatron.torch_trace.analysis.replay.kernels.gpu_order import GpuOrder, gpu_order, selected
from megatron.torch_trace.analysis.replay.kernels.graph import EDGE_KINDS
from megatron.torch_trace.analysis.replay.kernels.launch_times import launch_times
from megatron.torch_trace.columns.intervals import ints

STEP = 400_000


def order_of(trace: TraceBuilder, folder: Path) -> GpuOrder:
    timeline = trace.step(1, 0, STEP).timeline(folder)
    rows = ints(np.arange(len(timeline.activity.gpu)))
    return gpu_order(timeline, rows, launch_times(timeline))


def others(order: GpuOrder) -> list[tuple[str, int, int, int]]:
    """Dependencies beside launches and streams: their kind, from what, of what, and their lag."""
    columns = (order.source, order.target, order.lag)
    rows = zip(*(one.tolist() for one in columns), strict=True)
    return [(EDGE_KINDS[kind], *row) for kind, row in zip(order.kind.tolist(), rows, strict=True)]


def crowded(start: int) -> TraceBuilder:
    """Two streams work when a third one's kernel, long since launched, begins at last."""
    trace = TraceBuilder(0, 1).gpu("long", 20_000, 149_000, launch=15_000, stream=9)
    trace.gpu("shorter", 22_000, 140_000, launch=16_000, stream=11)
    return trace.gpu("late", start, start + 50_000, launch=30_000)


def test_a_late_start_that_nothing_else_explains_had_to_wait_for_what_ended_just_then(
    tmp_path: Path,
) -> None:
    order = order_of(crowded(150_000), tmp_path)
    assert others(order) == [("contention", 0, 2, 1_000)]
    # It is not taken for a long time from the launch to the start.
    assert order.launch_lag.tolist() == [5_000, 6_000, 6_000]


def test_the_last_blocks_of_a_kernel_leave_room_before_it_ends(tmp_path: Path) -> None:
    assert others(order_of(crowded(100_000), tmp_path)) == [("contention", 1, 2, -40_000)]


@pytest.mark.parametrize("start", [230_000, 50_000])
def test_what_begins_at_once_or_long_after_all_ends_had_to_wait_for_none_of_them(
    start: int, tmp_path: Path
) -> None:
    assert others(order_of(crowded(start), tmp_path)) == []


def test_a_call_that_takes_long_keeps_its_work_waiting_for_50_us_at_most(tmp_path: Path) -> None:
    trace = TraceBuilder(0, 1)
    for name, end in (("short", 12_000), ("long", 140_000)):
        begin = 10_000 if name == "short" else 60_000
        trace.gpu(name, end + 3_000, end + 9_000)
        trace.call("cudaLaunchKernel", begin, end, args={"correlation": trace.correlation})
    order = order_of(trace, tmp_path)
    # Usually work begins 3 us after its call has ended.
    assert order.usual_lag.tolist() == [2_000 + 3_000, 50_000 + 3_000]


def test_work_belongs_to_the_window_if_it_is_launched_or_runs_in_it(tmp_path: Path) -> None:
    trace = TraceBuilder(0, 1)
    launches = {
        "over before it": (-20_000, -15_000, -5_000),
        "launched before it": (-10_000, -4_000, 6_000),
        "launched as it begins": (0, 7_000, 9_000),
        "launched last": (STEP - 1, STEP + 5_000, STEP + 9_000),
        "launched as it ends": (STEP, STEP + 10_000, STEP + 12_000),
    }
    for name, (launch, start, end) in launches.items():
        trace.gpu(name, start, end, launch=launch)
    timeline = trace.step(1, 0, STEP).timeline(tmp_path)
    rows, within = selected(timeline, STEP)
    activity = timeline.activity
    names = [activity.names[code] for code in activity.gpu.name[rows].tolist()]
    assert dict(zip(names, within.tolist(), strict=True)) == {
        "launched before it": False,
        "launched as it begins": True,
        "launched last": True,
    }
