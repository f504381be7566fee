# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from recorded_traces import SAMPLES
from trace_builder import BACKWARD, GEMM, SENDRECV, TraceBuilder, collective_args

from megatron.torch_trace.analysis.run.rank import analyse_rank
from megatron.torch_trace.analysis.schedule.microbatches import (
    BubbleRow,
    MicrobatchRow,
    by_place,
    microbatch_rows,
)
from megatron.torch_trace.analysis.schedule.phases import PhaseRow, phase_rows
from megatron.torch_trace.analysis.timeline.moment import Moment
from megatron.torch_trace.analysis.timeline.span_names import (
    MicrobatchSpan,
    ModuleSpan,
    microbatch_span,
    module_span,
    phase_of,
)


@pytest.mark.parametrize(
    ("name", "span"),
    [
        ("forward micro-batch", MicrobatchSpan("forward", None, None, None)),
        ("forward micro-batch 3 (steady)", MicrobatchSpan("forward", 3, None, "steady")),
        ("forward micro-batch 3, part", MicrobatchSpan("forward", 3, None, None, is_part=True)),
        ("backward micro-batch 0 chunk 1 (cooldown)", MicrobatchSpan("backward", 0, 1, "cooldown")),
        ("backward micro-batch (warmup)", MicrobatchSpan("backward", None, None, "warmup")),
        ("backward micro-batch 10 chunk 2", MicrobatchSpan("backward", 10, 2, None)),
        (
            "forward micro-batch 2 of actor chunk 1 (steady), part",
            MicrobatchSpan("forward", 2, 1, "steady", is_part=True, model="actor"),
        ),
        (
            "backward micro-batch of actor",
            MicrobatchSpan("backward", None, None, None, model="actor"),
        ),
        ("forward-compute", None),
    ],
)
def test_names_of_micro_batches(name: str, span: MicrobatchSpan | None) -> None:
    assert microbatch_span(name) == span


@pytest.mark.parametrize(
    ("name", "span"),
    [
        ("decoder.layers.3.mlp: MLP", ModuleSpan("decoder.layers.3.mlp", "MLP", "forward")),
        ("mlp: MLP (backward)", ModuleSpan("mlp", "MLP", "backward")),
        ("chunk0.mlp: MLP (recompute)", ModuleSpan("chunk0.mlp", "MLP", "recompute")),
        ("forward micro-batch 3 (steady)", None),
        ("FSDP::pre_forward", None),
        ("a b: C", None),
    ],
)
def test_names_of_modules(name: str, span: ModuleSpan | None) -> None:
    assert module_span(name) == span


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("optimizer-copy-main-to-model-params", "optimizer-copy-main-to-model-params"),
        ("optimizer", "optimizer"),
        ("backward micro-batch 0 chunk 1 (cooldown)", "backward micro-batch"),
        ("backward micro-batch 0 of critic chunk 1", "backward micro-batch of critic"),
        ("forward without gradients of reference", "forward without gradients of reference"),
        ("step of critic", "step of critic"),
        ("optimizer of critic", "optimizer of critic"),
        ("result of critic", None),
        ("ProfilerStep#3", None),
        ("Optimizer.step#AdamW.step", None),
        ("nccl:all_reduce", None),
        ("mlp: MLP", None),
    ],
)
def test_names_of_phases(name: str, phase: str | None) -> None:
    assert phase_of(name) == phase


def one_micro_batch() -> TraceBuilder:
    trace = TraceBuilder().step(1, 0, 1000).annotation("forward-backward", 0, 500)
    trace.annotation("forward micro-batch 0 (steady)", 10, 100)
    trace.gpu(GEMM, 50, 120, launch=20)
    trace.annotation("backward micro-batch 0 (steady)", 200, 450)
    trace.gpu(GEMM, 230, 330, launch=220, tid=BACKWARD)
    trace.collective(300, 350, launch=240)
    return trace


def test_a_phase_has_its_time_and_the_work_that_any_thread_launched_meanwhile(
    tmp_path: Path,
) -> None:
    trace = one_micro_batch()
    # An annotation of another thread is no phase of the loop.
    trace.annotation("batch-generator", 0, 900, tid=BACKWARD)
    assert phase_rows(trace.timeline(tmp_path)) == (
        PhaseRow("forward-backward", 1, 500, 0.5, 220, 3, 20),
        PhaseRow("backward micro-batch", 1, 250, 0.25, 150, 2, 20),
        PhaseRow("forward micro-batch", 1, 90, 0.09, 70, 1, 0),
    )


def test_a_phase_is_a_union_cut_to_the_window(tmp_path: Path) -> None:
    trace = TraceBuilder().annotation("optimizer", 0, 120).step(1, 100, 300)
    trace.annotation("optimizer", 200, 220).annotation("optimizer", 210, 215)
    trace.annotation("logging", 400, 500)
    trace.gpu(GEMM, 90, 110, launch=50).gpu(GEMM, 250, 260, launch=212)
    assert phase_rows(trace.timeline(tmp_path)) == (PhaseRow("optimizer", 2, 40, 0.2, 20, 2, 0),)


def test_forward_and_backward_of_a_micro_batch_are_one_row(tmp_path: Path) -> None:
    assert microbatch_rows(one_micro_batch().timeline(tmp_path)) == (
        MicrobatchRow(1, 0, None, "steady", "steady", 90, 250, 70, 150),
    )


def test_micro_batches_are_told_apart_by_step_and_chunk_and_unknown_ones_stand_alone(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder().step(1, 0, 100).step(2, 100, 200)
    trace.annotation("forward micro-batch 0 chunk 0 (warmup)", 0, 10)
    trace.annotation("forward micro-batch 0 chunk 1 (steady)", 10, 30)
    trace.annotation("backward micro-batch 0 chunk 1 (steady)", 30, 35)
    trace.annotation("backward micro-batch (cooldown)", 40, 41)
    trace.annotation("forward micro-batch 0", 100, 101).annotation(
        "forward micro-batch 0", 102, 104
    )
    assert microbatch_rows(trace.timeline(tmp_path)) == (
        MicrobatchRow(1, 0, 0, "warmup", None, 10, None, 0, None),
        MicrobatchRow(1, 0, 1, "steady", "steady", 20, 5, 0, 0),
        MicrobatchRow(1, None, None, None, "cooldown", None, 1, None, 0),
        MicrobatchRow(2, 0, None, None, None, 1, None, 0, None),
        MicrobatchRow(2, 0, None, None, None, 2, None, 0, None),
    )


def test_micro_batches_of_several_models_are_told_apart(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 200)
    for at, name in ((0, "actor"), (40, "critic")):
        trace.annotation(f"forward micro-batch 0 of {name}", at, at + 10)
    for at, name in ((20, "critic"), (60, "actor")):
        trace.annotation(f"backward micro-batch 0 of {name}", at + 40, at + 45)
    rows = microbatch_rows(trace.timeline(tmp_path))
    assert rows == tuple(
        MicrobatchRow(1, 0, None, None, None, 10, 5, 0, 0, model=name)
        for name in ("actor", "critic")
    )
    assert [(one.direction, one.model, one.count) for one in by_place(rows)] == [
        (direction, name, 1)
        for direction in ("forward", "backward")
        for name in ("actor", "critic")
    ]


def test_the_bubble_is_of_the_place_of_the_micro_batch_that_ends_next(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 1000)
    trace.annotation("forward micro-batch 0 (warmup)", 0, 20).gpu(GEMM, 100, 200, launch=10)
    trace.annotation("forward micro-batch 1 (steady)", 20, 40).gpu(GEMM, 230, 300, launch=30)
    trace.annotation("backward micro-batch 0 (steady)", 50, 90)
    trace.gpu(GEMM, 370, 400, launch=60, tid=BACKWARD).gpu(GEMM, 405, 450, launch=70, tid=BACKWARD)
    trace.annotation("backward micro-batch 1 (cooldown)", 90, 110)
    trace.gpu(SENDRECV, 450, 500, launch=95, args=collective_args("recv", "pp"))
    trace.gpu(GEMM, 500, 600, launch=100, tid=BACKWARD)
    rank = analyse_rank(trace.write(tmp_path / "rank-0.json")).result
    assert rank.bubble == (
        BubbleRow("warmup", 1, 0),
        BubbleRow("steady", 2, 30 + 70 + 5),
        BubbleRow("cooldown", 1, 50),
    )
    assert [step.bubble_ns for step in rank.pipeline] == [155]


def test_without_spans_there_is_nothing(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100).gpu(GEMM, 60, 70, launch=10)
    timeline = trace.timeline(tmp_path)
    assert (phase_rows(timeline), microbatch_rows(timeline)) == ((), ())


def test_without_steps_phases_are_on_the_thread_that_has_them(tmp_path: Path) -> None:
    trace = TraceBuilder().annotation("forward micro-batch 0", 0, 50).gpu(GEMM, 10, 60, launch=5)
    timeline = trace.timeline(tmp_path)
    assert phase_rows(timeline) == (PhaseRow("forward micro-batch", 1, 50 - 10, 0.8, 50, 1, 0),)
    row = MicrobatchRow(None, 0, None, None, None, 50, None, 50, None)
    assert microbatch_rows(timeline) == (row,)


@pytest.mark.parametrize(
    ("rank", "places"), [(0, ["warmup", "steady", "cooldown"]), (1, ["steady"])]
)
def test_a_recorded_stage_has_all_its_micro_batches(rank: int, places: list[str]) -> None:
    folder = SAMPLES / "pp2-recompute-spans"
    found = analyse_rank(folder / f"rank-{rank}.pt.trace.json.gz").result
    assert [(row.step, row.number) for row in found.microbatches] == [(3, n) for n in range(8)]
    assert [row.place for row in found.bubble] == places
    assert sum(row.bubble_ns for row in found.bubble) == found.pipeline[0].bubble_ns
    phases = {row.phase: row for row in found.phases}
    for direction in ("forward", "backward"):
        phase = phases[f"{direction} micro-batch"]
        own = [getattr(row, f"{direction}_gpu_ns") for row in found.microbatches]
        cpu = [getattr(row, f"{direction}_ns") for row in found.microbatches]
        assert (sum(own), sum(cpu), phase.calls) == (phase.gpu_ns, phase.time_ns, 8)
    assert found.module_account is not None
    assert found.module_account.microbatch_ns == (
        phases["forward micro-batch"].gpu_ns + phases["backward micro-batch"].gpu_ns
    )


def test_a_graph_of_whole_iterations_counts_for_the_phases_of_a_step_without_it(
    tmp_path: Path,
) -> None:
    names = [f"{GEMM}_{number}" for number in range(6)]
    trace = TraceBuilder().step(1, 0, 1000).step(2, 1000, 2000)
    trace.annotation("forward micro-batch 0", 0, 100).annotation("backward micro-batch 0", 100, 200)
    for at, name in enumerate(names):
        trace.gpu(name, 300 + 20 * at, 310 + 20 * at, launch=10 + 40 * at)
        trace.gpu(name, 1300 + 20 * at, 1313 + 20 * at, args={"correlation": 77})
    trace.annotation("optimizer", 1000, 1050)
    trace.call("cudaGraphLaunch", 1010, 1020, args={"correlation": 77})
    found = {
        row.phase: (row.calls, row.kernels, row.gpu_ns)
        for row in phase_rows(trace.timeline(tmp_path))
    }
    assert found == {
        "forward micro-batch": (1, 3 + 3, 3 * 10 + 3 * 13),
        "backward micro-batch": (1, 2 + 2, 2 * 10 + 2 * 13),
        "optimizer": (1, 6, 6 * 13),
    }, "the sixth kernel was launched behind the backward; the launch of the graph was in another"


def test_micro_batches_that_take_turns_are_one_row_each(tmp_path: Path) -> None:
    """--overlap-moe-expert-parallel-comm runs one forward and another backward node by node."""
    trace = TraceBuilder().step(1, 0, 500).step(2, 500, 1000)
    for base in (0, 500):
        for start in (0, 40):
            trace.annotation("forward micro-batch 1, part", base + start, base + start + 10)
            trace.gpu(GEMM, base + start + 100, base + start + 120, launch=base + start + 5)
            begin = base + start + 20
            trace.annotation("backward micro-batch 0, part", begin, begin + 10)
            trace.gpu(GEMM, begin + 200, begin + 230, launch=begin + 5)
    rank = analyse_rank(trace.write(tmp_path / "rank-0.json")).result
    forward, backward = Moment(100, 60), Moment(220, 70)
    assert rank.microbatches == tuple(
        row
        for step in (1, 2)
        for row in (
            MicrobatchRow(step, 1, None, forward_ns=20, forward_gpu_ns=40),
            MicrobatchRow(step, 0, None, backward_ns=20, backward_gpu_ns=60),
        )
    )
    assert rank.microbatches[0].forward_on_gpu == forward
    assert rank.microbatches[1].backward_on_gpu == backward
