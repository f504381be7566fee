# SPDX-License-Identifier: Apache-2.0
"""What was recorded of the GPU and whether it can be believed: check, info and analyze agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_rows import KNOWN, MS, US, both, whole, work
from trace_builder import GEMM, LOOP, TraceBuilder

from megatron.torch_trace.analysis.run.rank import analyse_rank
from megatron.torch_trace.analysis.timeline.breakdown import Breakdown
from megatron.torch_trace.inspect.facts import problems
from megatron.torch_trace.report import sentences


@pytest.mark.parametrize("call", ["cudaMemsetAsync", "cudaMemcpyAsync", "hipMemsetAsync"])
def test_memsets_and_copies_of_nothing_leave_no_row_and_nothing_is_missing(
    tmp_path: Path, call: str
) -> None:
    trace = work()
    for number in range(30):
        trace.call(call, number * US, number * US + 500, args={"correlation": 900 + number})
    result, seen = both(trace, tmp_path)
    assert (result.breakdown, result.unknown) == (KNOWN, None)
    assert (result.launches.launches, result.launches.without_kernel) == (20, 0)
    assert (seen.launches, seen.launches_without_work, seen.has_faults) == (20, 0, False)


def test_kernels_that_were_dropped_are_missing_however_many_copies_are_there(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder().step(3, 0, MS)
    for number in range(40):
        start = (10 + 20 * number) * US
        more = {"cat": "gpu_memcpy", "call": "cudaMemcpyAsync"}
        trace.gpu("Memcpy HtoD", start, start + US, launch=start - US, **more)
    for number in range(2):
        trace.call(
            "cudaLaunchKernel", number * US, (number + 1) * US, args={"correlation": 900 + number}
        )
    result, seen = both(trace, tmp_path)
    sentence = (
        "2 of 2 launches have no kernel in the trace: activity was dropped, so the trace "
        "does not say what the GPU did."
    )
    assert (result.breakdown, result.unknown) == (None, sentence)
    assert seen.has_faults
    assert sentence in problems(seen)


def capture(trace: TraceBuilder, start: int, end: int, *, tid: int = LOOP) -> TraceBuilder:
    trace.call("cudaStreamBeginCapture", start, start + 500, tid=tid)
    return trace.call("cudaStreamEndCapture", end, end + 500, tid=tid)


def test_launches_into_a_graph_being_captured_run_nothing_yet(tmp_path: Path) -> None:
    trace = capture(work(), 1_100 * US, 1_300 * US)
    for number in range(30):
        at = (1_110 + 5 * number) * US
        # Autograd's thread launches into the same graph.
        trace.call("cudaLaunchKernel", at, at + US, tid=200, args={"correlation": 900 + number})
    result, seen = both(trace, tmp_path)
    assert result.breakdown == KNOWN
    launches = result.launches
    assert (launches.kernel_launches, launches.without_kernel) == (20, 0)
    assert (launches.captured, launches.captured_steps) == (30, (4,))
    assert (seen.kernel_launches, seen.captured, seen.has_faults) == (20, 30, False)
    sentence = "A CUDA graph was captured in step 4: 30 launches into the graph run nothing yet."
    assert sentence in problems(seen)
    finding = next(f for f in whole(trace, tmp_path).findings if f.code == "graph_capture")
    assert finding.title == f"{sentence.removesuffix('.')} (rank 0)."


def test_a_capture_that_does_not_end_or_begin_in_the_trace_reaches_to_its_edge(
    tmp_path: Path,
) -> None:
    trace = work()
    trace.call("cudaStreamEndCapture", 5 * US, 6 * US)
    trace.call("cudaStreamBeginCapture", 1_500 * US, 1_501 * US)
    for number, at in enumerate((1, 2, 3, 1_510, 1_520, 1_530)):
        trace.call("cudaLaunchKernel", at * US, at * US + 9, args={"correlation": 900 + number})
    result, seen = both(trace, tmp_path)
    assert (result.launches.captured, result.launches.captured_steps) == (6, (3, 4))
    assert (seen.captured, seen.has_faults) == (6, False)


def test_launches_outside_of_a_capture_are_missing_still(tmp_path: Path) -> None:
    trace = capture(work(), 1_100 * US, 1_300 * US)
    for number in range(5):
        at = (1_400 + number) * US
        trace.call("cudaLaunchKernel", at, at + 9, args={"correlation": 900 + number})
    result, seen = both(trace, tmp_path)
    assert (result.launches.captured, result.launches.without_kernel) == (0, 5)
    assert result.breakdown is None
    assert seen.has_faults


def test_the_steps_of_a_profiler_that_was_started_again_are_all_there(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for begin in (0, 10 * MS):
        for number in range(2):
            start = begin + number * MS
            trace.step(number, start, start + MS)
            trace.gpu(GEMM, start + 10 * US, start + 20 * US, launch=start)
    result, seen = both(trace, tmp_path)
    assert [(step.step, step.start_ns, step.end_ns) for step in result.steps] == [
        (0, 0, MS),
        (1, MS, 10 * MS),
        (0, 10 * MS, 11 * MS),
        (1, 11 * MS, 12 * MS),
    ]
    assert result.breakdown == Breakdown(40 * US, 0, 0, 12 * MS - 40 * US)
    sentence = (
        "teps 0-1 come more than once: a profiler was started again in this process; all 4 steps "
        "are in the window."
    )
    assert f"S{sentence}" in problems(seen)
    assert f"Rank 0: s{sentence}" in sentences.notes(whole(trace, tmp_path))


def test_a_step_marked_twice_is_one_step(tmp_path: Path) -> None:
    trace = work().step(3, 0, MS).step(7, 10 * US, 900 * US)
    result, seen = both(trace, tmp_path)
    assert [step.step for step in result.steps] == [3, 4]
    assert [number for number, *_ in seen.steps] == [3, 4]


def test_rows_that_are_written_twice_count_once_and_are_said(tmp_path: Path) -> None:
    trace = work()
    copies = [
        event
        for event in trace.events
        if '"cat": "kernel"' in event or '"cat": "cuda_runtime"' in event
    ]
    trace.events += copies[:20]
    result, seen = both(trace, tmp_path)
    assert (result.breakdown, result.duplicates) == (KNOWN, 10)
    assert [(row.calls, row.time_ns) for row in result.kernels] == [(20, 600 * US)]
    assert result.launches.launches == 20
    assert (seen.duplicates, seen.has_faults) == (10, True)
    assert "10 GPU rows are written again; each is counted once." in problems(seen)
    assert "Rank 0: 10 GPU rows are written again; each is counted once." in sentences.notes(
        whole(trace, tmp_path)
    )


def test_launches_of_which_nothing_is_recorded_are_one_reason_without_steps_too(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder()
    for number in range(20):
        at = number * US
        trace.call("cudaLaunchKernel", at, at + 500, args={"correlation": 1 + number})
    result, seen = both(trace, tmp_path)
    assert result.unknown == (
        "20 of 20 launches have no kernel in the trace: the GPU's activity was not recorded "
        "(another profiler on the GPU, or no permission to trace it), so the trace "
        "does not say what the GPU did."
    )
    assert result.unknown in problems(seen)


def test_the_replay_of_a_graph_is_known_by_its_launch_and_where_that_was(tmp_path: Path) -> None:
    trace = TraceBuilder().step(3, 0, MS).step(4, MS, 2 * MS)
    for at, operator in ((0, False), (500 * US, True), (MS, False)):
        if operator:
            trace.op("GraphedBackward", at, at + 20 * US)
        trace.gpu(GEMM, at + 10 * US, at + 40 * US, launch=at + US, call="cudaGraphLaunch")
        args = {"device": 0, "stream": 7, "correlation": trace.correlation}
        trace.slice("kernel", GEMM, at + 50 * US, 30 * US, pid=0, tid=7, args=args)
    result = analyse_rank(trace.write(tmp_path / "rank-0.json")).result
    assert {(row.operator, row.launches, row.kernels) for row in result.operators} == {
        ("cudaGraphLaunch in step 3", 1, 2),
        ("GraphedBackward", 1, 2),
        ("cudaGraphLaunch in step 4", 1, 2),
    }


def test_without_steps_the_work_and_the_window_are_two_numbers(tmp_path: Path) -> None:
    trace = TraceBuilder().gpu(GEMM, 0, 33 * MS).gpu(GEMM, 12_867 * MS, 12_900 * MS)
    assert sentences.head(whole(trace, tmp_path)) == (
        "rank 0; NVIDIA H200; no ProfilerStep, 66 ms of GPU work in 12.9 s; MFU unknown."
    )


def test_one_short_kernel_is_no_finding(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, MS).gpu(GEMM, 10 * US, 12 * US, launch=0)
    assert "tiny_kernels" not in [finding.code for finding in whole(trace, tmp_path).findings]
