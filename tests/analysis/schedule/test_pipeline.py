# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

from trace_builder import BACKWARD, GEMM, SENDRECV, TraceBuilder, collective_args

from megatron.torch_trace.analysis.communication.collectives import attribute
from megatron.torch_trace.analysis.schedule.pipeline import PipelineStep, pipeline_steps
from megatron.torch_trace.analysis.timeline.command_line import virtual_stages

GROUPS = [{"pg_name": "pp", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [0, 1]}]


def last_stage() -> TraceBuilder:
    """Rank 1 of two stages, two micro-batches: receives, forward, backward, sends, twice."""
    trace = TraceBuilder(1, 2, groups=GROUPS).step(3, 0, 1000)
    send, recv = (collective_args(name, "pp") for name in ("send", "recv"))
    trace.op("record_param_comms", 10, 11, args=recv).annotation("nccl:coalesced", 12, 20)
    trace.gpu(SENDRECV, 20, 120, launch=15, stream=9)
    trace.gpu(GEMM, 120, 200, launch=100).gpu(GEMM, 200, 300, launch=150, tid=BACKWARD)
    trace.op("record_param_comms", 208, 209, args=send)
    trace.op("record_param_comms", 210, 211, args=recv)
    trace.annotation("nccl:coalesced", 212, 220).gpu(SENDRECV, 290, 340, launch=215, stream=9)
    trace.gpu(GEMM, 340, 420, launch=310).gpu(GEMM, 450, 550, launch=350, tid=BACKWARD)
    trace.op("record_param_comms", 400, 401, args=send).annotation("nccl:coalesced", 402, 410)
    trace.gpu(SENDRECV, 550, 560, launch=405, stream=9)
    # The optimizer, after the last micro-batch.
    trace.gpu("void multi_tensor_apply_kernel<AdamFunctor>(int)", 800, 900, launch=790)
    return trace


def test_the_bubble_is_exposed_send_and_receive_and_idle_between_the_micro_batches(
    tmp_path: Path,
) -> None:
    timeline = last_stage().timeline(tmp_path)
    assert pipeline_steps(timeline, attribute(timeline), 1) == (
        PipelineStep(
            rank=1,
            step=3,
            stage=1,
            stages=2,
            microbatches=2,
            chunks=None,
            start_ns=20,
            end_ns=560,
            compute_ns=360,
            # 100 before the first forward, [300, 340) beside nothing, 10 of the last send.
            exposed_pipeline_ns=150,
            idle_ns=30,
            bubble_ns=180,
            bubble_share=180 / 540,
            ideal_share=1 / 3,
        ),
    )


def test_matrix_products_of_the_optimizer_are_no_micro_batch(tmp_path: Path) -> None:
    """Muon orthogonalises with them, on the thread of the training loop."""
    plain, muon = last_stage().timeline(tmp_path), last_stage()
    muon.annotation("Optimizer.step#TensorParallelMuon.step", 700, 780)
    muon.gpu(GEMM, 790, 800, launch=750)
    timeline = muon.timeline(tmp_path / "muon")
    assert pipeline_steps(timeline, attribute(timeline), 1) == pipeline_steps(
        plain, attribute(plain), 1
    )


def test_a_rank_without_pipeline_has_no_entry(tmp_path: Path) -> None:
    timeline = TraceBuilder().step(1, 0, 100).gpu(GEMM, 10, 20, launch=1).timeline(tmp_path)
    assert pipeline_steps(timeline, attribute(timeline), 0) == ()


def test_a_stage_in_the_middle_sends_twice_for_each_micro_batch(tmp_path: Path) -> None:
    groups = [{**GROUPS[0], "ranks": [0, 1, 2]}]
    trace = TraceBuilder(1, 3, groups=groups).step(1, 0, 1000)
    for number in range(8):
        at = 100 * number + 10
        trace.op("record_param_comms", at, at + 1, args=collective_args("send", "pp"))
        trace.annotation("nccl:coalesced", at + 2, at + 8)
        trace.gpu(SENDRECV, at + 20, at + 30, launch=at + 4).gpu(GEMM, at + 30, at + 50, launch=at)
    timeline = trace.timeline(tmp_path)
    (entry,) = pipeline_steps(timeline, attribute(timeline), 1)
    assert (entry.stage, entry.stages, entry.microbatches, entry.chunks) == (1, 3, 4, None)
    assert entry.ideal_share == 2 / 6


def test_with_interleaving_the_data_loader_tells_the_number_of_micro_batches(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder(0, 2, groups=GROUPS).step(1, 0, 1000)
    # Two chunks: forwards of both are sent on, backwards of the second one are sent back.
    for number in range(9):
        at = 100 * number + 10
        trace.op("record_param_comms", at, at + 1, args=collective_args("send", "pp"))
        trace.annotation("nccl:coalesced", at + 2, at + 8).gpu(
            SENDRECV, at + 20, at + 30, launch=at + 4
        )
    for number in range(3):
        at = 100 * number + 60
        trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 5)
    timeline = trace.timeline(tmp_path)
    (entry,) = pipeline_steps(timeline, attribute(timeline), 0)
    assert (entry.microbatches, entry.chunks, entry.ideal_share) == (3, 2, 1 / 7)


def test_spans_tell_micro_batches_and_virtual_stages_of_a_stage_in_the_middle(
    tmp_path: Path,
) -> None:
    groups = [{**GROUPS[0], "ranks": [0, 1, 2]}]
    trace = TraceBuilder(1, 3, groups=groups).step(1, 0, 1000)
    trace.op("record_param_comms", 5, 6, args=collective_args("send", "pp"))
    trace.annotation("nccl:coalesced", 7, 9).gpu(SENDRECV, 20, 30, launch=8)
    for nth in range(8):
        at, number, chunk = 100 * nth + 10, nth // 2, nth % 2
        trace.annotation(f"forward micro-batch {number} chunk {chunk} (steady)", at, at + 30)
        trace.annotation(f"backward micro-batch {number} chunk {chunk} (steady)", at + 40, at + 50)
    timeline = trace.timeline(tmp_path)
    (entry,) = pipeline_steps(timeline, attribute(timeline), 1)
    assert (entry.microbatches, entry.chunks, entry.ideal_share) == (4, 2, 2 / 10)


def test_a_step_in_which_two_models_train_has_no_bubble_for_each_has_its_own_schedule(
    tmp_path: Path,
) -> None:
    trace = last_stage()
    for at, name in ((100, "actor"), (310, "critic")):
        trace.annotation(f"forward micro-batch 0 of {name}", at, at + 30)
    timeline = trace.timeline(tmp_path)
    assert pipeline_steps(timeline, attribute(timeline), 1) == ()


def test_sends_that_are_not_recorded_leave_the_number_unknown(tmp_path: Path) -> None:
    trace = TraceBuilder(0, 2, groups=GROUPS).step(1, 0, 1000)
    trace.gpu(SENDRECV, 20, 30, launch=10, args=collective_args("send", "pp"))
    timeline = trace.timeline(tmp_path)
    (entry,) = pipeline_steps(timeline, attribute(timeline), 0)
    assert (entry.microbatches, entry.ideal_share) == (None, None)


def test_sends_of_shapes_are_no_micro_batches(tmp_path: Path) -> None:
    trace = TraceBuilder(0, 2, groups=GROUPS).step(1, 0, 1000)
    shape = collective_args("send", "pp", nelems=3, dtype="Long")
    for number in range(4):
        at = 100 * number + 10
        trace.op("record_param_comms", at, at + 1, args=shape)
        trace.op("record_param_comms", at + 2, at + 3, args=collective_args("send", "pp"))
        trace.annotation("nccl:coalesced", at + 4, at + 8)
        trace.gpu(SENDRECV, at + 20, at + 30, launch=at + 6)
    timeline = trace.timeline(tmp_path)
    (entry,) = pipeline_steps(timeline, attribute(timeline), 0)
    assert entry.microbatches == 4


def test_virtual_stages_are_what_the_command_line_says() -> None:
    def told(*words: str) -> int | None:
        return virtual_stages(words, stages=4)

    assert told() is None
    assert told("--num-layers", "16") == 1
    assert told("--num-layers", "16", "--num-layers-per-virtual-pipeline-stage", "2") == 2
    assert told("--num-layers=24", "--num-layers-per-virtual-pipeline-stage=2") == 3
    assert told("--num-layers", "18", "--num-layers-per-virtual-pipeline-stage", "2") is None
    assert told("--num-virtual-stages-per-pipeline-rank", "3") == 3
    assert told("--pipeline-model-parallel-layout", "Et|t|tL") is None
