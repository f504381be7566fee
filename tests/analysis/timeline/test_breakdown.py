# SPDX-License-Identifier: Apache-2.0
"""Window, steps and the four parts, on traces by hand and against the reference on real ones."""

from __future__ import annotations

import tempfile
from dataclasses import fields
from pathlib import Path

import analysis_reference as reference
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded_traces import label, recorded
from trace_builder import GEMM, NCCL, TraceBuilder

from megatron.torch_trace.analysis.run.rank import EmptyTraceError, analyse_rank
from megatron.torch_trace.analysis.timeline.breakdown import Breakdown, break_down
from megatron.torch_trace.analysis.timeline.steps import MergedTraceError, Step
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_PARTS


def parts(builder: TraceBuilder, folder: Path) -> tuple[Breakdown, tuple[Breakdown, ...]]:
    timeline = builder.timeline(folder)
    return break_down(timeline.sets, timeline.window)


def test_the_parts_have_one_list_of_names() -> None:
    assert tuple(field.name for field in fields(Breakdown)) == BREAKDOWN_PARTS


def test_communication_beside_compute_is_not_exposed(tmp_path: Path) -> None:
    trace = TraceBuilder().step(5, 0, 100)
    trace.gpu(GEMM, 10, 30, launch=5).gpu(NCCL, 20, 50, launch=6, stream=8)
    trace.gpu("Memcpy DtoD", 45, 60, launch=7, cat="gpu_memcpy")
    whole, steps = parts(trace, tmp_path)
    # compute 20; communication [20, 50) minus [10, 30) = 20; copies [45, 60) minus [20, 50) = 10.
    assert whole == Breakdown(compute=20, exposed_communication=20, exposed_memory=10, idle=50)
    assert steps == (whole,)


def test_kernels_that_overlap_count_once(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 20)
    trace.gpu(GEMM, 0, 10, launch=0).gpu(GEMM, 5, 15, launch=1, stream=9).gpu(GEMM, 8, 12, launch=2)
    assert parts(trace, tmp_path)[0] == Breakdown(15, 0, 0, 5)


def test_annotations_and_spans_on_the_gpu_are_no_work(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 40).gpu(GEMM, 10, 20, launch=5)
    trace.slice("gpu_user_annotation", "ProfilerStep#1", 0, 40, pid=0, tid=7)
    trace.slice("Trace", "PyTorch Profiler (0)", 0, 40, pid="Spans", tid="PyTorch Profiler")
    assert parts(trace, tmp_path)[0] == Breakdown(10, 0, 0, 30)


def test_the_last_step_lasts_until_its_work_is_done(tmp_path: Path) -> None:
    trace = TraceBuilder().step(5, 0, 40).step(6, 42, 80)
    trace.gpu(GEMM, 10, 50, launch=30).gpu(GEMM, 70, 120, launch=75)
    timeline = trace.timeline(tmp_path)
    assert (timeline.window.start, timeline.window.end) == (0, 120)
    assert timeline.window.steps == (Step(5, 0, 42, 40), Step(6, 42, 120, 80))
    assert break_down(timeline.sets, timeline.window) == (
        Breakdown(90, 0, 0, 30),
        (Breakdown(32, 0, 0, 10), Breakdown(58, 0, 0, 20)),
    )


def test_work_launched_before_the_window_is_cut_at_its_edge_and_counted(tmp_path: Path) -> None:
    trace = TraceBuilder().step(5, 100, 200).gpu(GEMM, 50, 130).gpu(GEMM, 180, 300)
    timeline = trace.timeline(tmp_path)
    # Nobody in the window launched the second kernel: it does not make the window longer.
    assert (timeline.window.start, timeline.window.end) == (100, 200)
    assert break_down(timeline.sets, timeline.window)[0] == Breakdown(50, 0, 0, 50)


def test_without_steps_the_window_is_the_work(tmp_path: Path) -> None:
    trace = TraceBuilder().gpu(GEMM, 10, 30, launch=0).gpu(GEMM, 50, 60, launch=1)
    whole, steps = parts(trace, tmp_path)
    assert (whole, steps) == (Breakdown(30, 0, 0, 20), ())


def test_old_spellings_of_categories_are_work_too(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 50)
    trace.gpu(GEMM, 0, 10, launch=0, cat="Kernel").gpu("c", 10, 15, launch=1, cat="Memcpy")
    assert parts(trace, tmp_path)[0] == Breakdown(10, 0, 5, 35)


def test_of_several_gpus_the_busiest_is_analysed_and_the_others_are_named(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 50).gpu(GEMM, 0, 10, launch=0)
    trace.slice("kernel", GEMM, 20, 25, pid=3, tid=7, args={"device": 3, "stream": 7})
    result = analyse_rank(trace.write(tmp_path / "rank-0.json")).result
    assert result.breakdown == Breakdown(25, 0, 0, 25)
    assert result.other_devices == (0,)


def test_a_trace_with_nothing_in_it_says_so(tmp_path: Path) -> None:
    path = TraceBuilder().op("aten::mm", 0, 10).write(tmp_path / "rank-0.json")
    with pytest.raises(EmptyTraceError, match="neither ProfilerStep nor GPU work"):
        analyse_rank(path)


def test_the_same_step_in_two_processes_is_a_merged_trace(tmp_path: Path) -> None:
    path = TraceBuilder().step(5, 0, 10).step(5, 0, 12, pid=43).write(tmp_path / "rank-0.json")
    with pytest.raises(MergedTraceError, match="a merged trace"):
        analyse_rank(path)


@pytest.mark.slow
@pytest.mark.parametrize("path", recorded(), ids=label)
def test_every_recorded_trace_agrees_with_the_reference_to_the_nanosecond(path: Path) -> None:
    result = analyse_rank(path).result
    expected = reference.breakdown(path)
    assert result.breakdown is not None
    assert result.window_ns == expected["window"] == result.breakdown.total
    assert result.communication_ns == expected["communication"]
    assert astuple(result.breakdown) == expected["breakdown"]
    assert [(s.step, astuple(s.breakdown)) for s in result.steps] == expected["steps"]
    assert sum(s.end_ns - s.start_ns for s in result.steps) in (0, result.window_ns)
    assert result.host.idle.total_ns == result.breakdown.idle


def astuple(breakdown: Breakdown | None) -> tuple[int, int, int, int]:
    assert breakdown is not None
    return (
        breakdown.compute,
        breakdown.exposed_communication,
        breakdown.exposed_memory,
        breakdown.idle,
    )


works = st.lists(
    st.tuples(
        st.sampled_from(["kernel", "nccl", "gpu_memcpy", "gpu_memset"]),
        st.integers(0, 3000),
        st.integers(0, 900),
        st.one_of(st.none(), st.integers(0, 2000)),
        st.sampled_from([7, 8]),
    ),
    min_size=1,
    max_size=25,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(works, st.lists(st.integers(1, 900), max_size=3))
def test_random_traces_agree_with_the_reference(
    work: list[tuple[str, int, int, int | None, int]], steps: list[int]
) -> None:
    trace = TraceBuilder()
    at = 100
    for number, length in enumerate(steps):
        trace.step(number, at, at + length)
        at += length + 3
    for kind, start, length, launch, stream in work:
        name, cat = (NCCL, "kernel") if kind == "nccl" else (kind, kind)
        trace.gpu(name, start, start + length, launch=launch, cat=cat, stream=stream)
    with tempfile.TemporaryDirectory() as folder:
        path = trace.write(Path(folder) / "rank-0.json")
        expected = reference.breakdown(path)
        if not expected["window"]:
            return
        timeline = trace.timeline(Path(folder))
        whole, by_step = break_down(timeline.sets, timeline.window)
    assert timeline.window.length == expected["window"] == whole.total
    assert astuple(whole) == expected["breakdown"]
    numbered = zip(timeline.window.steps, by_step, strict=True)
    assert [(step.number, astuple(one)) for step, one in numbered] == expected["steps"]
