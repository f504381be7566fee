# SPDX-License-Identifier: Apache-2.0
"""When calls launch: a long one may have waited for room in the queue, or for its stream."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from megatron.torch_trace.analysis.replay.kernels.launch_times import launch_times

HTOD = "Memcpy HtoD (Pageable -> Device)"


def launched(trace: TraceBuilder, start: int, end: int, work: tuple[int, int], name: str) -> None:
    """A call from start to end that launches this work."""
    trace.gpu(name, *work)
    call = "cudaMemcpyAsync" if name == HTOD else "cudaLaunchKernel"
    trace.call(call, start, end, args={"correlation": trace.correlation})


def of_the_last(trace: TraceBuilder, folder: Path) -> tuple[int, int, bool]:
    """When the last call launches, how long that takes, and whether it waited before."""
    found = launch_times(trace.step(1, 0, 900_000).timeline(folder))
    return int(found.begin[-1]), int(found.took[-1]), bool(found.waited[-1])


def queue(length: int, begun: int) -> TraceBuilder:
    """So many launches of 2 us, of which so many have begun when a call of 100 us ends."""
    trace = TraceBuilder(0, 1)
    for number in range(length):
        start = (50_000 if number < begun else 950_000) + 10 * number
        at = 2_000 * number
        launched(trace, at, at + 2_000, (start, start + 5), "gemm")
    return trace


@pytest.mark.parametrize(
    ("length", "begun", "waits"), [(256, 0, True), (255, 0, False), (257, 2, False), (257, 1, True)]
)
def test_a_long_call_waited_for_room_if_a_full_queue_is_before_it(
    length: int, begun: int, waits: bool, tmp_path: Path
) -> None:
    trace = queue(length, begun)
    launched(trace, 700_000, 800_000, (960_000, 970_000), "gemm")
    launches = (798_000, 2_000, True) if waits else (700_000, 100_000, False)
    assert of_the_last(trace, tmp_path) == launches


def test_a_call_of_50_us_has_not_waited(tmp_path: Path) -> None:
    trace = queue(300, 0)
    launched(trace, 700_000, 750_000, (960_000, 970_000), "gemm")
    assert of_the_last(trace, tmp_path) == (700_000, 50_000, False)


@pytest.mark.parametrize(("copied", "begin"), [(760_000, 758_000), (701_000, 700_000)])
def test_a_call_that_copies_pageable_memory_launches_shortly_before_the_copy(
    copied: int, begin: int, tmp_path: Path
) -> None:
    trace = queue(10, 10)
    launched(trace, 700_000, 800_000, (copied, 799_000), HTOD)
    assert of_the_last(trace, tmp_path) == (begin, 2_000, True)
