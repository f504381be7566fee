# SPDX-License-Identifier: Apache-2.0
"""Work finds its module through spans, sequence numbers of autograd, and frames of stacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import BACKWARD, GEMM, LOOP, NCCL, TraceBuilder

from megatron.torch_trace.analysis.modules.rows import ModuleRow, Modules, look_at_modules
from megatron.torch_trace.analysis.timeline.autograd import stem

WITH_STACK = {"with_stack": 1}


def trace(entries: dict[str, Any] | None = None) -> TraceBuilder:
    """A trace that tells of its sequence numbers."""
    builder = TraceBuilder(own={}).step(1, 0, 10_000)
    builder.entries.update(entries or {"record_shapes": 1})
    return builder


def made(sequence: int) -> dict[str, Any]:
    """Arguments of an operator that makes autograd's node of this number."""
    return {"Sequence number": sequence, "Fwd thread id": 0}


def runs(sequence: int, thread: int = 1) -> dict[str, Any]:
    """Arguments of an operator that runs the node of this number and torch's number of a thread."""
    return {"Sequence number": sequence, "Fwd thread id": thread}


def frame(builder: TraceBuilder, name: str, start: int, end: int, tid: int = LOOP) -> None:
    builder.slice("python_function", f"nn.Module: {name}", start, end - start, tid=tid)


def times(found: Modules) -> dict[str, tuple[int, int, int]]:
    """Own time forward, backward and recomputed of each module with any."""
    rows: dict[str, tuple[int, int, int]] = {}
    for row in found.rows:
        own = (row.self_ns, row.backward_self_ns, row.recompute_self_ns)
        if any(own):
            rows[row.module] = own
    return rows


def two_layers(builder: TraceBuilder) -> TraceBuilder:
    """Forward of `a` and of `a.b` inside it, then their backward on autograd's thread."""
    builder.op("aten::mul", 10, 20, args=made(5)).gpu(GEMM, 1000, 1001, launch=12)
    builder.op("aten::mm", 30, 40, args=made(6)).gpu(GEMM, 1001, 1003, launch=32)
    for name, sequence, start in (("MmBackward0", 6, 200), ("MulBackward0", 5, 300)):
        builder.op(
            f"autograd::engine::evaluate_function: {name}", start, start + 50, tid=BACKWARD
        ).op(name, start + 10, start + 40, tid=BACKWARD, args=runs(sequence))
    builder.gpu(GEMM, 1100, 1110, launch=220, tid=BACKWARD)
    return builder.gpu(GEMM, 1200, 1220, launch=320, tid=BACKWARD)


def test_backward_work_without_a_span_belongs_to_the_module_that_made_the_node(
    tmp_path: Path,
) -> None:
    builder = trace().annotation("a: A", 0, 100).annotation("a.b: B", 25, 50)
    found = look_at_modules(two_layers(builder).timeline(tmp_path))
    assert times(found) == {"a": (1, 20, 0), "a.b": (2, 10, 0)}
    assert [row.backward_calls for row in found.rows] == [0, 0]
    assert found.account is not None
    assert (found.account.unattributed_ns, found.account.by_sequence_ns) == (0, 30)


def test_a_sequence_number_leads_deeper_than_a_span_and_never_out_of_it(tmp_path: Path) -> None:
    builder = trace().annotation("a: A", 0, 100).annotation("a.b: B", 25, 50)
    builder.annotation("a: A (backward)", 190, 290, tid=BACKWARD)
    builder.annotation("c: C (backward)", 290, 400, tid=BACKWARD)
    found = look_at_modules(two_layers(builder).timeline(tmp_path))
    assert times(found) == {"a": (1, 0, 0), "a.b": (2, 10, 0), "c": (0, 20, 0)}


def test_what_a_checkpoint_runs_again_is_recomputation_and_its_gradients_are_backward(
    tmp_path: Path,
) -> None:
    builder = trace().annotation("a: A", 0, 100)
    builder.op("CheckpointFunction", 10, 90, args=made(7)).annotation("a.b: B", 20, 80)
    builder.gpu(GEMM, 500, 501, launch=30)
    builder.op("CheckpointFunctionBackward", 200, 400, tid=BACKWARD, args=runs(7))
    builder.annotation("a.b: B (recompute)", 210, 250, tid=BACKWARD)
    # Numbers count on each thread: 3 is one of autograd's own.
    builder.op("aten::mm", 215, 225, tid=BACKWARD, args=made(3))
    builder.gpu(GEMM, 600, 602, launch=220, tid=BACKWARD)
    builder.op("MmBackward0", 300, 320, tid=BACKWARD, args=runs(3, thread=5))
    builder.gpu(GEMM, 700, 704, launch=310, tid=BACKWARD)
    # No span of a module is open when this is launched, and no operator of the forward pass either.
    builder.gpu(GEMM, 800, 808, launch=390, tid=BACKWARD)
    # Run again outside of a module's span.
    builder.op("aten::mul", 350, 360, tid=BACKWARD, args=made(4))
    builder.gpu(GEMM, 900, 916, launch=355, tid=BACKWARD)
    found = look_at_modules(builder.timeline(tmp_path))
    assert times(found) == {"a": (0, 8, 16), "a.b": (1, 4, 2)}


def test_what_a_node_has_made_again_before_it_runs_is_not_of_the_module_that_made_the_node(
    tmp_path: Path,
) -> None:
    builder = trace().annotation("a: A", 0, 100).annotation("a.b: B", 20, 80)
    builder.op("aten::mm", 30, 40, args=made(7)).gpu(GEMM, 500, 501, launch=35)
    # The first node of `a` to run has all of `a` made again, as torch's checkpoints do.
    builder.op("MmBackward0", 200, 400, tid=BACKWARD, args=runs(7))
    builder.annotation("a: A (recompute)", 210, 300, tid=BACKWARD)
    builder.op("aten::mul", 220, 230, tid=BACKWARD, args=made(3))
    builder.gpu(GEMM, 600, 602, launch=225, tid=BACKWARD)
    builder.op("aten::mul", 310, 320, tid=BACKWARD, args=made(4))
    builder.gpu(GEMM, 700, 704, launch=315, tid=BACKWARD)
    builder.gpu(GEMM, 800, 808, launch=390, tid=BACKWARD)
    found = look_at_modules(builder.timeline(tmp_path))
    assert times(found) == {"a": (0, 0, 2), "a.b": (1, 8, 0)}
    assert found.account is not None
    assert found.account.unattributed_ns == 4


def test_nodes_that_an_operator_in_place_makes_beside_its_own_are_its_too(tmp_path: Path) -> None:
    builder = trace().annotation("a: A", 0, 100)
    builder.op("aten::masked_fill_", 10, 20, args=made(5)).op("aten::add", 110, 120, args=made(8))
    builder.op("MaskedFillBackward0", 200, 210, tid=BACKWARD, args=runs(5))
    builder.op("torch::autograd::CopySlices", 220, 230, tid=BACKWARD, args=runs(6))
    builder.gpu(GEMM, 500, 501, launch=225, tid=BACKWARD)
    builder.op("AddBackward0", 240, 250, tid=BACKWARD, args=runs(8))
    builder.gpu(GEMM, 600, 602, launch=245, tid=BACKWARD)
    assert times(look_at_modules(builder.timeline(tmp_path))) == {"a": (0, 1, 0)}


def test_a_finished_gradient_is_added_for_the_module_whose_node_made_it(tmp_path: Path) -> None:
    builder = two_layers(trace().annotation("a: A", 0, 100).annotation("a.b: B", 25, 50))
    name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    builder.op(name, 260, 280, tid=BACKWARD).gpu(GEMM, 1300, 1340, launch=265, tid=BACKWARD)
    # What it sets off is of all parameters of a bucket.
    builder.gpu(NCCL, 1400, 1480, launch=270, tid=BACKWARD)
    found = look_at_modules(builder.timeline(tmp_path))
    assert times(found) == {"a": (1, 20, 0), "a.b": (2, 10 + 40, 0)}
    assert found.account is not None
    assert found.account.unattributed_ns == 80


def test_what_the_engine_does_around_a_node_is_of_the_node_inside(tmp_path: Path) -> None:
    builder = two_layers(trace().annotation("a: A", 0, 100).annotation("a.b: B", 25, 50))
    # Behind MmBackward0, which ends at 240, and within what runs it, which ends at 250.
    builder.gpu(GEMM, 1300, 1340, launch=245, tid=BACKWARD)
    # Nothing in here has a number.
    builder.op("autograd::engine::evaluate_function: Other", 400, 450, tid=BACKWARD)
    builder.gpu(GEMM, 1400, 1480, launch=420, tid=BACKWARD)
    found = look_at_modules(builder.timeline(tmp_path))
    assert times(found) == {"a": (1, 20, 0), "a.b": (2, 10 + 40, 0)}


def test_a_node_made_before_the_trace_leads_nowhere(tmp_path: Path) -> None:
    builder = trace().annotation("a: A", 0, 100).op("aten::mm", 10, 20, args=made(5))
    builder.op("MmBackward0", 200, 210, tid=BACKWARD, args=runs(4))
    builder.gpu(GEMM, 500, 501, launch=205, tid=BACKWARD)
    assert times(look_at_modules(builder.timeline(tmp_path))) == {}


def test_frames_of_modules_make_a_tree_of_classes(tmp_path: Path) -> None:
    builder = trace(WITH_STACK)
    for name, start, end in (
        ("DistributedDataParallel_0", 0, 110),
        ("GPTModel_0", 1, 105),
        ("Layer_4", 8, 22),
        ("Layer_5", 24, 100),
        ("MLP_9", 25, 50),
    ):
        frame(builder, name, start, end)
    found = look_at_modules(two_layers(builder).timeline(tmp_path))
    assert [(row.module, row.type, row.calls) for row in found.rows] == [
        ("GPTModel", "GPTModel", 1),
        ("GPTModel.Layer.0", "Layer", 1),
        ("GPTModel.Layer.1", "Layer", 1),
        ("GPTModel.Layer.1.MLP", "MLP", 1),
    ]
    assert times(found) == {"GPTModel.Layer.0": (1, 20, 0), "GPTModel.Layer.1.MLP": (2, 10, 0)}
    assert found.account is not None
    assert (found.account.source, found.account.by_sequence_ns) == ("stacks", 30)


def test_a_frame_inside_the_backward_pass_is_recomputation(tmp_path: Path) -> None:
    builder = trace(WITH_STACK)
    frame(builder, "GPT_0", 0, 60)
    frame(builder, "MLP_0", 5, 50)
    builder.op("CheckpointFunction", 10, 40, args=made(7)).gpu(GEMM, 500, 501, launch=20)
    builder.op("CheckpointFunctionBackward", 200, 300, tid=BACKWARD, args=runs(7))
    frame(builder, "MLP_0", 210, 250, tid=BACKWARD)
    builder.gpu(GEMM, 600, 602, launch=220, tid=BACKWARD)
    assert times(look_at_modules(builder.timeline(tmp_path))) == {"GPT.MLP": (1, 0, 2)}


@pytest.mark.parametrize(
    ("own", "expected"), [({"schema": 1}, "a"), (None, "MLP")], ids=["ours", "somebody's"]
)
def test_spans_of_our_capture_come_before_frames_and_annotations_named_like_them_behind(
    tmp_path: Path, own: dict[str, Any] | None, expected: str
) -> None:
    builder = TraceBuilder(own=own).step(1, 0, 10_000).annotation("a: A", 0, 100)
    builder.entries.update(WITH_STACK)
    frame(builder, "MLP_0", 0, 100)
    found = look_at_modules(builder.gpu(GEMM, 200, 201, launch=10).timeline(tmp_path))
    assert times(found) == {expected: (1, 0, 0)}


@pytest.mark.parametrize("chunk", ["", "chunk1."])
def test_everything_is_below_the_model_of_its_chunk(tmp_path: Path, chunk: str) -> None:
    builder = trace()
    for number, name in enumerate((f"{chunk}model", f"{chunk}decoder", f"{chunk}decoder.0", "x")):
        start, end = 10 * number, 100 - 10 * number
        builder.annotation(f"{name}: A", start, end)
        builder.gpu(GEMM, 200 + start, 200 + start + 2**number, launch=start + 5)
    # The model of another chunk holds nothing of this one.
    builder.annotation("chunk0.model: A", 150, 160).gpu(GEMM, 300, 350, launch=155)
    rows = {row.module: row.total_ns for row in look_at_modules(builder.timeline(tmp_path)).rows}
    outside = 8 if chunk else 0
    assert rows[f"{chunk}model"] == 15 - outside
    assert rows[f"{chunk}decoder"] == 6
    assert (rows[f"{chunk}decoder.0"], rows["x"], rows["chunk0.model"]) == (4, 8, 50)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::_softmax", "softmax"),
        ("SoftmaxBackward0", "softmax"),
        ("autograd::engine::evaluate_function: torch::autograd::CopySlices", "copyslices"),
        ("_ReduceFromModelParallelRegionBackward", "reducefrommodelparallelregion"),
        ("aten::layer_norm_backward", "layernorm"),
    ],
)
def test_both_operators_of_a_node_have_the_same_stem(name: str, expected: str) -> None:
    assert stem(name) == expected


MOMENTS = st.integers(0, 60)
NAMES = st.sampled_from(["a", "a.b", "a.b.c", "model", "d"])


@settings(max_examples=60)
@given(
    ranges=st.lists(st.tuples(NAMES, MOMENTS, MOMENTS, st.integers(0, 2)), max_size=12),
    nodes=st.lists(st.tuples(MOMENTS, MOMENTS, st.integers(0, 4), st.booleans()), max_size=12),
    work=st.lists(st.tuples(MOMENTS, MOMENTS, st.booleans()), min_size=1, max_size=12),
    stacks=st.booleans(),
)
def test_own_times_and_what_is_in_no_module_are_all_gpu_work_whatever_the_trace_says(
    tmp_path_factory: pytest.TempPathFactory,
    ranges: list[tuple[str, int, int, int]],
    nodes: list[tuple[int, int, int, bool]],
    work: list[tuple[int, int, bool]],
    stacks: bool,
) -> None:
    builder = TraceBuilder().step(1, 0, 100)
    builder.entries["record_shapes"] = 1
    for name, start, end, kind in ranges:
        tid = LOOP if kind == 0 else BACKWARD
        if stacks:
            frame(builder, f"{name.replace('.', '')}_{kind}", start, max(start, end), tid)
        else:
            suffix = ("", " (backward)", " (recompute)")[kind]
            builder.annotation(f"{name}: A{suffix}", start, max(start, end), tid=tid)
    for start, end, sequence, backward in nodes:
        args = runs(sequence) if backward else made(sequence)
        name, tid = ("MmBackward0", BACKWARD) if backward else ("aten::mm", LOOP)
        builder.op(name, start, max(start, end), tid=tid, args=args)
    for launch, length, backward in work:
        begin = launch + 20
        builder.gpu(GEMM, begin, begin + length, launch=launch, tid=BACKWARD if backward else LOOP)
    timeline = builder.timeline(tmp_path_factory.mktemp("trace"))
    found = look_at_modules(timeline)
    if found.account is None:
        assert not ranges
        return
    assert found.account.gpu_ns == int(timeline.clipped.sum())
    for rows in (found.rows, found.classes):
        assert sum(map(_own, rows)) + found.account.unattributed_ns == found.account.gpu_ns
    by_path = {row.module: row for row in found.rows}
    for row in found.rows:
        assert row.total_ns >= _own(row)
        assert row.total_ns == row.time_ns + row.backward_time_ns + row.recompute_time_ns
        holder = by_path.get(row.module.rpartition(".")[0])
        assert holder is None or holder.total_ns >= row.total_ns


def _own(row: ModuleRow) -> int:
    return row.self_ns + row.backward_self_ns + row.recompute_self_ns
