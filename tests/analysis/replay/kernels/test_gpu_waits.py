# SPDX-License-Identifier: Apache-2.0
"""What a call that waits for the GPU has waited for, where the file does not tell it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from trace_builder import TraceBuilder

from megatron.torch_trace.analysis.replay.kernels.gpu_waits import GpuWaits, gpu_waits
from megatron.torch_trace.analysis.replay.kernels.launch_times import launch_times
from megatron.torch_trace.analysis.replay.kernels.thread_points import thread_points
from megatron.torch_trace.columns.intervals import ints

STREAM, EVENT, DEVICE = "cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize"
BEGIN, RETURN = 50_000, 100_000
"""Of the call that waits; all work is launched before."""


def awaited(call: str, folder: Path, **work: tuple[int, int, int]) -> tuple[list[str], GpuWaits]:
    """Names of the work that a call waited for.

    Args:
        work: stream, start and end by name, in the order of launch.
    """
    trace = TraceBuilder(0, 1)
    for number, (name, (stream, start, end)) in enumerate(work.items()):
        trace.gpu(name, start, end, launch=1_000 * number, stream=stream)
    timeline = trace.call(call, BEGIN, RETURN).step(1, 0, 200_000).timeline(folder)
    points = thread_points(timeline, launch_times(timeline))
    found = gpu_waits(timeline, points, ints(np.arange(len(timeline.activity.gpu))))
    activity = timeline.activity
    return [activity.names[code] for code in activity.gpu.name[found.work].tolist()], found


@pytest.mark.parametrize(
    ("work", "names"),
    [
        # Of the stream that the thread launched on last, as long as its work was not done.
        ({"other": (9, 5_000, 96_000), "own": (7, 6_000, 97_000)}, ["own"]),
        ({"other": (9, 5_000, 96_000), "own": (7, 6_000, 51_000)}, ["own"]),
        # That one was done: the work that ended when the call returned is on another stream.
        ({"a": (11, 0, 60_000), "b": (9, 5_000, 96_000), "own": (7, 6_000, 20_000)}, ["b"]),
        # All was done: nothing was waited for, whatever ended last.
        ({"other": (9, 5_000, 40_000), "own": (7, 6_000, 20_000)}, ["own"]),
        # By two clocks work may end some us after the call that waited for it.
        ({"own": (7, 6_000, 105_000)}, ["own"]),
        ({"own": (7, 6_000, 106_000)}, []),
    ],
)  # fmt: skip
def test_a_stream_is_the_one_launched_on_last_unless_another_one_s_work_ended_then(
    work: dict[str, tuple[int, int, int]], names: list[str], tmp_path: Path
) -> None:
    assert awaited(STREAM, tmp_path, **work)[0] == names


@pytest.mark.parametrize(
    ("work", "names"),
    [
        ({"longest": (9, 5_000, 96_000), "last": (7, 6_000, 80_000)}, ["longest"]),
        ({"beyond": (9, 5_000, 120_000), "last": (7, 6_000, 80_000)}, ["last"]),
        ({"just before": (7, 6_000, 45_001)}, ["just before"]),
        ({"long before": (7, 6_000, 45_000)}, []),
        ({"beyond": (9, 5_000, 120_000), "long before": (7, 6_000, 45_000)}, []),
    ],
)
def test_an_event_stands_behind_what_ended_last_before_the_call_returned(
    work: dict[str, tuple[int, int, int]], names: list[str], tmp_path: Path
) -> None:
    assert awaited(EVENT, tmp_path, **work)[0] == names


def test_a_device_is_all_of_its_streams_and_the_last_one_let_the_call_return(
    tmp_path: Path,
) -> None:
    work = {"early": (9, 5_000, 60_000), "late": (7, 6_000, 97_000), "done": (11, 7_000, 9_000)}
    names, found = awaited(DEVICE, tmp_path, **work)
    told = dict(zip(names, zip(found.lag.tolist(), found.told.tolist(), strict=True), strict=True))
    # 3 us after the last one; of the others that is the least that a return takes.
    assert told == {"early": (3_000, True), "late": (3_000, True), "done": (3_000, True)}
    assert not awaited(STREAM, tmp_path, **work)[1].told.any()


@pytest.mark.parametrize(("end", "cost"), [(97_000, 4_000), (49_000, 50_000)])
def test_a_call_that_waited_costs_what_such_calls_cost_without_a_wait(
    end: int, cost: int, tmp_path: Path
) -> None:
    _, found = awaited(STREAM, tmp_path, own=(7, 6_000, end))
    assert found.cost.max() == cost
