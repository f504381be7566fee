# SPDX-License-Identifier: Apache-2.0
"""Forwards and backwards of a stage in a trace without spans, and when they have numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import BACKWARD, GEMM, LOOP, SENDRECV, TraceBuilder, collective_args

from megatron.torch_trace.analysis.communication.collectives import attribute
from megatron.torch_trace.analysis.replay.spans.orders import Shape, order_of
from megatron.torch_trace.analysis.schedule.passes import PassRow, pass_rows
from megatron.torch_trace.analysis.schedule.pipeline import pipeline_steps
from megatron.torch_trace.analysis.timeline.moment import Moment

ADD = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>"
LENGTH = 30


def passes_of(trace: TraceBuilder, folder: Path, stage: int) -> tuple[PassRow, ...]:
    timeline = trace.timeline(folder)
    calls = attribute(timeline)
    return pass_rows(timeline, calls, pipeline_steps(timeline, calls, stage))


def recorded(shape: Shape, stage: int, *, operators: bool = True) -> TraceBuilder:
    """Each pass launches at its begin and runs 10 ns later; what is asked of neighbours follows."""
    groups = [
        {
            "pg_name": "pp",
            "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP",
            "ranks": list(range(shape.stages)),
        }
    ]
    order = order_of(shape, stage)
    whole = LENGTH * (len(order) + 3)
    trace = TraceBuilder(stage, shape.stages, groups=groups).step(1, 0, whole)
    args = collective_args("send_recv", "pp")
    for number, one in enumerate(order):
        at = LENGTH * (number + 1)
        thread = LOOP if one.is_forward else BACKWARD
        trace.gpu(ADD, at + 10, at + 12, launch=at, tid=thread)
        trace.gpu(GEMM, at + 14, at + 20, launch=at + 1, tid=thread)
        following = order[number + 1 : number + 2]
        reduced = collective_args("all_reduce", "tp")
        trace.gpu(
            "ncclDevKernel_AllReduce", at + 19, at + 23, launch=at + 2, tid=thread, args=reduced
        )
        if any(next_one.is_forward == one.is_forward for next_one in following) or not number:
            if operators:
                trace.op("record_param_comms", at + 21, at + 23, args=args)
            trace.gpu(SENDRECV, at + 24, at + 26, launch=at + 22, stream=9, args=args)
    return trace


@pytest.mark.parametrize("operators", [True, False])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_passes_of_1f1b_are_told_and_numbered_without_spans(
    tmp_path: Path, stage: int, operators: bool
) -> None:
    shape = Shape(3, 1, 5)
    found = passes_of(recorded(shape, stage, operators=operators), tmp_path, stage)
    assert [(one.direction, one.number) for one in found] == [
        ("forward" if one.is_forward else "backward", one.microbatch)
        for one in order_of(shape, stage)
    ]
    assert found[0] == PassRow(1, "forward", 0, Moment(LENGTH + 10, 10), 12)


@pytest.mark.parametrize("stage", [0, 1])
def test_passes_of_virtual_stages_have_no_numbers(tmp_path: Path, stage: int) -> None:
    shape = Shape(2, 2, 4)
    found = passes_of(recorded(shape, stage), tmp_path, stage)
    assert [(one.direction, one.number) for one in found] == [
        ("forward" if one.is_forward else "backward", None) for one in order_of(shape, stage)
    ]


def test_what_the_loop_computes_beside_the_model_is_no_pass(tmp_path: Path) -> None:
    trace = recorded(Shape(2, 1, 2), 1)
    trace.gpu(ADD, 57, 58, launch=56)  # the loss is scaled between a forward and its backward
    end = LENGTH * 5
    trace.gpu(ADD, end + 10, end + 20, launch=end).gpu(GEMM, end + 20, end + 30, launch=end + 1)
    found = passes_of(trace, tmp_path, 1)
    assert [(one.direction, one.number) for one in found] == [
        ("forward", 0),
        ("backward", 0),
        ("forward", 1),
        ("backward", 1),
    ]


def test_a_copy_of_another_thread_does_not_part_a_pass(tmp_path: Path) -> None:
    trace = recorded(Shape(2, 1, 2), 1)
    copied = {"cat": "gpu_memcpy"}
    trace.gpu("Memcpy HtoD (Pinned -> Device)", 52, 53, launch=33, tid=77, stream=8, **copied)
    trace.gpu(ADD, 53, 55, launch=34)
    found = passes_of(trace, tmp_path, 1)
    assert found[0] == PassRow(1, "forward", 0, Moment(LENGTH + 10, 15), 14)


def test_a_trace_with_spans_of_micro_batches_tells_passes_itself(tmp_path: Path) -> None:
    trace = recorded(Shape(2, 1, 2), 1)
    trace.annotation("forward micro-batch 0", LENGTH, LENGTH + 9)
    assert passes_of(trace, tmp_path, 1) == ()


def test_a_rank_without_pipeline_has_no_passes(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100).gpu(GEMM, 10, 20, launch=5)
    assert passes_of(trace, tmp_path, 0) == ()
