# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from module_reference import work_by_module
from recorded_traces import SAMPLES
from trace_builder import BACKWARD, GEMM, TraceBuilder

from megatron.torch_trace.analysis.gpu_work.kernels import BEFORE, NO_OPERATOR
from megatron.torch_trace.analysis.modules.coverage import ModuleAccount, OutsideRow
from megatron.torch_trace.analysis.modules.rows import ModuleRow, Modules, look_at_modules
from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.analysis.run.rank import analyse_rank
from megatron.torch_trace.analysis.timeline.span_names import PASSES

SPANS = SAMPLES / "pp2-recompute-spans"


@pytest.fixture(scope="module")
def stages() -> list[RankResult]:
    files = [SPANS / f"rank-{rank}.pt.trace.json.gz" for rank in (0, 1)]
    return [analyse_rank(file).result for file in files]


def test_modules_have_their_own_work_and_that_of_their_parts(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 1000)
    trace.annotation("decoder.layers.0: TransformerLayer", 0, 100)
    trace.annotation("decoder.layers.0.mlp: MLP", 20, 60)
    trace.gpu(GEMM, 200, 230, launch=30).gpu(GEMM, 230, 240, launch=70)
    trace.op("aten::mul", 140, 160).gpu(GEMM, 300, 400, launch=150)
    layer = (1, 10, 40, 2, *[0] * 8, 40, 0, 40 / 140)
    mlp = (1, 30, 30, 1, *[0] * 8, 30, 0, 30 / 140)
    assert look_at_modules(trace.timeline(tmp_path)) == Modules(
        rows=(
            ModuleRow("decoder.layers.0", "TransformerLayer", *layer),
            ModuleRow("decoder.layers.0.mlp", "MLP", *mlp),
        ),
        classes=(ModuleRow("", "TransformerLayer", *layer), ModuleRow("", "MLP", *mlp)),
        account=ModuleAccount(140, 100, None, None, (OutsideRow("aten::mul", 100, 1),)),
    )


def test_backward_and_recomputation_are_apart_and_on_the_thread_that_launches(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder().step(1, 0, 1000)
    trace.annotation("forward micro-batch 0", 0, 100).annotation("mlp: MLP", 10, 50)
    trace.gpu(GEMM, 100, 110, launch=20)
    trace.annotation("backward micro-batch 0", 200, 400)
    trace.annotation("mlp: MLP (backward)", 210, 390, tid=BACKWARD)
    trace.annotation("mlp: MLP (recompute)", 220, 260, tid=BACKWARD)
    trace.gpu(GEMM, 300, 320, launch=230, tid=BACKWARD)
    trace.gpu(GEMM, 320, 360, launch=300, tid=BACKWARD)
    # Launched by the loop while autograd's thread was in the module: it is in none.
    trace.gpu(GEMM, 400, 480, launch=305)
    trace.gpu(GEMM, 500, 505)
    found = look_at_modules(trace.timeline(tmp_path))
    row = (1, 10, 10, 1, 1, 40, 40, 1, 1, 20, 20, 1, 70, 0, 70 / 155)
    assert found.rows == (ModuleRow("mlp", "MLP", *row),)
    outside = (OutsideRow(NO_OPERATOR, 80, 1), OutsideRow(BEFORE, 5, 1))
    assert found.account == ModuleAccount(155, 85, 150, 80, outside, microbatch_loose_compute_ns=80)


def test_weight_gradients_computed_later_are_work_of_the_backward_pass_and_no_call(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder().step(1, 0, 1000)
    trace.annotation("mlp: MLP", 0, 50).gpu(GEMM, 100, 110, launch=20)
    trace.annotation("mlp: MLP (backward)", 100, 150, tid=BACKWARD)
    trace.gpu(GEMM, 200, 220, launch=120, tid=BACKWARD)
    trace.annotation("mlp: MLP (weight gradient)", 200, 250).gpu(GEMM, 300, 340, launch=220)
    (row,) = look_at_modules(trace.timeline(tmp_path)).rows
    assert row == ModuleRow("mlp", "MLP", 1, 10, 10, 1, 1, 60, 60, 2, *[0] * 4, 70, 0, 1.0)


def test_spans_of_phases_and_others_are_no_modules(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100)
    for name in (
        "forward micro-batch 3 (steady)",
        "forward-compute",
        "nccl:all_reduce",
        "a: B (c)",
    ):
        trace.annotation(name, 0, 50)
    trace.op("mlp: MLP", 0, 50).gpu(GEMM, 60, 70, launch=10)
    assert look_at_modules(trace.timeline(tmp_path)) == Modules()


def test_communication_of_a_module_is_exposed_where_nothing_computes(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 1000).annotation("mlp: MLP", 0, 100)
    trace.collective(200, 300, launch=10).gpu(GEMM, 250, 400, launch=20, stream=8)
    (row,) = look_at_modules(trace.timeline(tmp_path)).rows
    assert (row.total_ns, row.exposed_communication_ns, row.share) == (250, 50, 1.0)


def test_a_class_inside_its_own_class_counts_once(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 1000)
    trace.annotation("a: Linear", 0, 100).annotation("a.b: Linear", 10, 50)
    trace.gpu(GEMM, 200, 210, launch=20).gpu(GEMM, 210, 215, launch=60)
    trace.annotation("chunk1.c: Linear", 110, 150).gpu(GEMM, 300, 301, launch=120)
    found = look_at_modules(trace.timeline(tmp_path))
    assert [row.module for row in found.rows] == ["a", "a.b", "chunk1.c"]
    assert found.classes == (ModuleRow("", "Linear", 3, 16, 16, 3, *[0] * 8, 16, 0, 1.0),)


def test_work_cut_by_the_window_belongs_to_the_module_of_another_step(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100).step(2, 100, 200)
    trace.annotation("mlp: MLP", 0, 50).annotation("mlp: MLP", 100, 150)
    trace.gpu(GEMM, 90, 130, launch=10).gpu(GEMM, 150, 160, launch=110)
    path = trace.write(tmp_path / "rank-0.json")
    rows = [analyse_rank(path, step=step).result.modules for step in (1, 2)]
    assert [(row.calls, row.self_ns, row.kernels) for (row,) in rows] == [(1, 10, 1), (1, 40, 2)]


def test_modules_and_what_is_in_none_are_all_gpu_work_exactly(stages: list[RankResult]) -> None:
    for rank in stages:
        account = rank.module_account
        assert account is not None
        own = sum(r.self_ns + r.backward_self_ns + r.recompute_self_ns for r in rank.modules)
        assert own + account.unattributed_ns == account.gpu_ns
        assert account.gpu_ns == sum(row.time_ns for row in rank.kernels)
        assert account.unattributed_ns == sum(row.time_ns for row in account.outside)
        classes = rank.module_classes
        assert sum(r.self_ns + r.backward_self_ns + r.recompute_self_ns for r in classes) == own


@pytest.mark.parametrize("sample", ["pp2-recompute-spans/rank-1", "tp2pp2-stack/rank-0"])
def test_each_kernel_is_in_the_module_that_a_plain_search_finds(sample: str) -> None:
    path = SAMPLES / f"{sample}.pt.trace.json.gz"
    found: Counter[tuple[str, str]] = Counter()
    for row in analyse_rank(path).result.modules:
        # The search knows modules of stacks by their classes only.
        module = re.sub(r"\.\d+(?=\.|$)", "", row.module) if "stack" in sample else row.module
        times = (row.self_ns, row.backward_self_ns, row.recompute_self_ns)
        found.update({(module, one): time for one, time in zip(PASSES, times, strict=True)})
    assert +found == work_by_module(path)


def test_the_unattributed_share_within_micro_batches_is_known(stages: list[RankResult]) -> None:
    # The last stage is above 2 %: recorded before the model itself had a span, its loss is in none.
    shares = [
        account.microbatch_unattributed_ns / account.microbatch_ns
        for account in (rank.module_account for rank in stages)
        if account and account.microbatch_ns and account.microbatch_unattributed_ns is not None
    ]
    assert [round(share, 4) for share in shares] == [0.0058, 0.1466]


def test_all_work_of_the_layers_is_in_modules_on_every_stage(stages: list[RankResult]) -> None:
    for rank in stages:
        layers = [row for row in rank.modules if row.type == "TransformerLayer"]
        assert len(layers) == 4
        # Of equal layers each pass puts equally much on the GPU, 8 micro-batches of it.
        for name in ("kernels", "recompute_kernels", "backward_kernels"):
            assert len({getattr(row, name) for row in layers}) == 1
        assert {(r.calls, r.recompute_calls, r.backward_calls) for r in layers} == {(8, 8, 8)}
        assert all(row.kernels == row.recompute_kernels == 152 for row in layers)
