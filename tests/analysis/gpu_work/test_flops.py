# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recorded_traces import SAMPLES
from trace_builder import BACKWARD, GEMM, TraceBuilder

from megatron.torch_trace.analysis.gpu_work.flops import function_flops, has_formula, operator_flops
from megatron.torch_trace.analysis.gpu_work.operator_flops import work_flops
from megatron.torch_trace.analysis.modules.rows import look_at_modules
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.analysis.run.rank import analyse_rank

FLASH = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)"
B, H, S, T, D = 2, 16, 1024, 512, 64
BHSD, BHTD, BSHD, BTHD = [B, H, S, D], [B, H, T, D], [B, S, H, D], [B, T, H, D]
ATTENTION = 4 * B * H * S * T * D


@pytest.mark.parametrize(
    ("name", "dims", "flops"),
    [
        ("aten::mm", [[3, 5], [5, 7]], 2 * 3 * 5 * 7),
        ("aten::addmm", [[7], [3, 5], [5, 7], [], []], 2 * 3 * 5 * 7),
        ("aten::bmm", [[4, 3, 5], [4, 5, 7]], 4 * 2 * 3 * 5 * 7),
        ("aten::baddbmm", [[4, 3, 7], [4, 3, 5], [4, 5, 7], [], []], 4 * 2 * 3 * 5 * 7),
        ("aten::linear", [[11, 2, 5], [7, 5], [7]], 2 * 22 * 5 * 7),
        ("aten::_scaled_mm", [[3, 5], [5, 7], [], []], 2 * 3 * 5 * 7),
        ("aten::_grouped_mm", [[30, 5], [8, 5, 7], [8]], 2 * 30 * 5 * 7),
        ("aten::_grouped_mm", [[5, 30], [30, 7], [8]], 2 * 5 * 30 * 7),
        ("aten::_grouped_mm", [[8, 3, 5], [5, 30], [8]], 2 * 3 * 5 * 30),
        ("aten::mm", [[3, 5], [6, 7]], None),
        ("aten::mm", [], None),
        ("aten::embedding", [[32000, 1024], [1, 1024]], None),
    ],
)
def test_flops_of_products(name: str, dims: list[Any], flops: int | None) -> None:
    assert operator_flops(name, dims, []) == flops


@pytest.mark.parametrize(
    ("name", "dims", "inputs", "flops"),
    [
        ("aten::_flash_attention_forward", [BSHD, BTHD, BTHD], [], ATTENTION),
        ("aten::_scaled_dot_product_flash_attention", [BHSD, BHTD, BHTD],
         ["", "", "", "0.", "True", "False", ""], ATTENTION // 2),
        ("aten::_scaled_dot_product_flash_attention", [BHSD, BHTD, BHTD],
         ["", "", "", "0.", "False", "False", ""], ATTENTION),
        # Fewer heads of K and V do not make it less.
        ("aten::_scaled_dot_product_cudnn_attention", [BHSD, [B, 2, T, D], [B, 2, T, D]], [],
         ATTENTION),
        ("aten::_efficient_attention_forward", [BSHD, BTHD, [B, T, H, 2 * D]],
         [""] * 9 + ["1"], (ATTENTION // 2 + ATTENTION) // 2),
        ("aten::_flash_attention_backward", [BSHD, BSHD, BTHD, BTHD], [], ATTENTION * 5 // 2),
        ("flash_attn::_flash_attn_backward", [BSHD, BSHD, BTHD, BTHD],
         [""] * 11 + ["True"], ATTENTION * 5 // 4),
        # Sequences of several lengths in one: which, the shapes do not tell.
        ("aten::_flash_attention_forward", [[S, H, D], [T, H, D], [T, H, D]], [], None),
    ],
)  # fmt: skip
def test_flops_of_attention(
    name: str, dims: list[Any], inputs: list[str], flops: int | None
) -> None:
    assert operator_flops(name, dims, inputs) == flops


X, W = [S, B, 1024], [4096, 1024]
LINEAR = 2 * S * B * 1024 * 4096


@pytest.mark.parametrize(
    ("name", "dims", "inputs", "forward", "backward"),
    [
        ("LinearWithGradAccumulationAndAsyncCommunication", [X, W, [4096]], [], LINEAR, 2 * LINEAR),
        ("_Linear", [W, X, [4096]], [], LINEAR, 2 * LINEAR),
        ("_Linear", [W, list(W), [S * B, 1024], [4096]], [], LINEAR, 2 * LINEAR),
        ("_Linear", [W, list(W), [4096]], [], 2 * 4096 * 1024 * 4096, 4 * 4096 * 1024 * 4096),
        ("_LayerNormLinear", [X, [1024], [1024], W, []], [], LINEAR, 2 * LINEAR),
        ("_GroupedLinear", [[300, 1024], [], W, W, W], [], 2 * 300 * 1024 * 4096,
         4 * 300 * 1024 * 4096),
        ("GroupedGemm", [[300, 1024], [8, 1024, 4096], [8], []], [], 2 * 300 * 1024 * 4096,
         4 * 300 * 1024 * 4096),
        ("_LayerNormMLP", [X, [1024], [1024], [8192, 1024], [], [1024, 4096]], [],
         3 * LINEAR, 3 * LINEAR),
        ("FlashAttnFunc", [BSHD, BTHD, BTHD], ["", "", "", "0.", "0.125", "True"],
         ATTENTION // 2, ATTENTION * 5 // 4),
        ("FusedAttnFunc", [[], [], [], [3], [3], [S, B, H, D], [T, B, H, D], [T, B, H, D]],
         ["True", str(S), str(T)], ATTENTION, ATTENTION * 5 // 2),
        # Newer: Q, K and V come first, and the longer dimension is the sequence.
        ("FusedAttnFunc", [[S, B, H, D], [T, B, H, D], [T, B, H, D], [], []], [],
         ATTENTION, ATTENTION * 5 // 2),
        ("FusedAttnFunc", [BSHD, BTHD, BTHD], [], ATTENTION, ATTENTION * 5 // 2),
        ("FusedAttnFunc", [[S, B, H, D]] * 3, [], ATTENTION * 2, ATTENTION * 5),
        ("FusedAttnFunc", [BSHD] * 3, ["causal"], ATTENTION, ATTENTION * 5 // 2),
    ],
)  # fmt: skip
def test_flops_of_functions_that_launch_products_themselves(
    name: str, dims: list[Any], inputs: list[str], forward: int, backward: int
) -> None:
    assert has_formula(name)
    assert has_formula(f"{name}Backward")
    assert function_flops(name, dims, inputs) == forward
    assert function_flops(name, dims, inputs, backward_kernels=2) == backward


def test_a_function_that_makes_only_one_gradient_itself_counts_one() -> None:
    name = "LinearWithGradAccumulationAndAsyncCommunication"
    assert function_flops(name, [X, W], [], backward_kernels=1) == LINEAR


def shaped(dims: Any, **more: Any) -> dict[str, Any]:
    return {"Input Dims": dims, **more}


def test_an_operator_counts_once_however_many_kernels_it_launches(tmp_path: Path) -> None:
    builder = TraceBuilder().step(1, 0, 1000)
    builder.op("aten::linear", 0, 100, args=shaped([[3, 5], [7, 5]]))
    builder.op("aten::mm", 10, 90, args=shaped([[3, 5], [5, 7]]))
    builder.gpu(GEMM, 200, 210, launch=20).gpu("splitKreduce_kernel", 210, 220, launch=30)
    found = work_flops(builder.timeline(tmp_path))
    assert found is not None
    assert found.flops.tolist() == [210, 0]
    assert not found.unknown.any()


def test_a_fused_gradient_of_weights_has_the_shapes_of_the_forward_pass(tmp_path: Path) -> None:
    name = "LinearWithGradAccumulationAndAsyncCommunication"
    builder = TraceBuilder().step(1, 0, 1000)
    numbers = {"Sequence number": 4, "Fwd thread id": 0}
    builder.op(name, 0, 50, args=shaped([[3, 5], [7, 5]], **numbers))
    builder.op("aten::mm", 10, 40, args=shaped([[3, 5], [5, 7]])).gpu(GEMM, 60, 70, launch=20)
    numbers = {"Sequence number": 4, "Fwd thread id": 1}
    builder.op(f"{name}Backward", 100, 200, tid=BACKWARD, args=shaped([[3, 7]], **numbers))
    builder.op("aten::mm", 110, 120, tid=BACKWARD, args=shaped([[3, 7], [7, 5]]))
    builder.gpu(GEMM, 300, 310, launch=115, tid=BACKWARD)
    builder.gpu(GEMM, 310, 320, launch=150, tid=BACKWARD)
    found = work_flops(builder.timeline(tmp_path))
    assert found is not None
    assert found.flops.tolist() == [210, 210, 210]


def test_a_product_without_a_formula_makes_its_module_unknown_and_not_less(tmp_path: Path) -> None:
    builder = TraceBuilder().step(1, 0, 1000)
    builder.annotation("a: A", 0, 100).annotation("a.b: B", 10, 40)
    builder.op("aten::mm", 20, 30, args=shaped([[3, 5], [5, 7]])).gpu(GEMM, 200, 210, launch=25)
    builder.op("mine::attention", 50, 60, args=shaped([BSHD])).gpu(FLASH, 210, 260, launch=55)
    outer, inner = look_at_modules(builder.timeline(tmp_path), peak_tflops=0.084).rows
    assert (outer.flops, outer.tflops, outer.peak_share) == (None, None, None)
    assert (inner.flops, inner.backward_flops, inner.tflops) == (210, 0, 0.021)
    assert inner.peak_share == pytest.approx(0.25)


def test_without_shapes_flops_are_unknown_and_not_none(tmp_path: Path) -> None:
    builder = TraceBuilder().step(1, 0, 1000).annotation("a: A", 0, 100)
    builder.op("aten::mm", 20, 30).gpu(GEMM, 200, 210, launch=25)
    found = look_at_modules(builder.timeline(tmp_path))
    (row,) = found.rows
    assert (row.flops, row.backward_flops, row.recompute_flops, row.tflops) == (None,) * 4
    assert found.account is not None
    assert (found.account.flops, found.account.unattributed_flops) == (None, None)


def test_an_operator_at_the_edge_of_a_step_counts_in_the_step_where_it_begins(
    tmp_path: Path,
) -> None:
    builder = TraceBuilder().step(1, 0, 100).step(2, 100, 200).annotation("a: A", 0, 50)
    builder.op("aten::mm", 20, 30, args=shaped([[3, 5], [5, 7]])).gpu(GEMM, 90, 120, launch=25)
    path = builder.write(tmp_path / "rank-0.json")
    rows = [analyse_rank(path, step=step).result.modules[0] for step in (1, 2)]
    assert [(row.time_ns, row.flops) for row in rows] == [(10, 210), (20, 0)]


def test_flops_of_all_modules_are_the_model_s_own_but_for_the_masked_half_of_attention() -> None:
    analysis = analyze(SAMPLES / "pp2-recompute-spans")
    everything = attention = 0
    for rank in analysis.ranks:
        for row in rank.modules:
            flops = row.flops, row.backward_flops
            assert None not in flops
            total = sum(one or 0 for one in flops)
            if row.module in ("decoder", "output_layer"):
                everything += total
            if row.module.endswith("core_attention"):
                attention += total
    # Megatron counts a causal mask as half; unfused attention computes all of it.
    assert everything - attention // 2 == analysis.mfu.model_flops
    assert {rank.module_account.unattributed_flops for rank in analysis.ranks
            if rank.module_account} == {0}  # fmt: skip


def test_flops_are_in_the_document_and_in_the_frames() -> None:
    analysis = analyze(SAMPLES / "tp2pp2-stack")
    frame = analysis.to_polars()["modules"].filter(module="GPTModel").row(0, named=True)
    assert frame["backward_flops"] == 2 * frame["flops"] == 240518168576
    assert round(frame["tflops"], 1) == 80.7


def test_shapes_that_are_no_json_are_unknown(tmp_path: Path) -> None:
    builder = TraceBuilder().step(1, 0, 1000)
    builder.op("aten::mm", 20, 30, args={"Input Dims": json.loads('"[[3, ..."')})
    found = work_flops(builder.gpu(GEMM, 200, 210, launch=25).timeline(tmp_path))
    assert found is not None
    assert (found.flops.tolist(), found.unknown.tolist()) == ([0], [True])


@pytest.mark.parametrize(
    ("kernel", "eight_bit"),
    [
        ("nvjet_qqtst_128x256_128x4_2x1_v_bz_TNT", 2 * 3 * 5 * 7),
        ("nvjet_sm90_qrtst_128x128_128x6_2x1_v_bz_coopA_algo2_TNT", 2 * 3 * 5 * 7),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128", 2 * 3 * 5 * 7),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_TNT", 0),
    ],
)
def test_flops_in_eight_bits_are_told_by_the_name_of_the_product(
    tmp_path: Path, kernel: str, eight_bit: int
) -> None:
    builder = TraceBuilder().step(1, 0, 1000)
    builder.op("_Linear", 0, 100, args=shaped([[7, 5], [3, 5], []]))
    builder.gpu("cast_transpose_optimized_kernel", 150, 160, launch=10)
    builder.gpu(kernel, 200, 210, launch=20)
    found = work_flops(builder.timeline(tmp_path))
    assert found is not None
    assert (found.flops.tolist(), found.eight_bit.tolist()) == ([210, 0], [eight_bit, 0])
    assert not found.unknown.any()


def test_a_causal_mask_that_the_trace_tells_halves_attention_of_transformer_engine(
    tmp_path: Path,
) -> None:
    builder = TraceBuilder(own={"causal_attention": True}).step(1, 0, 1000)
    builder.op("FusedAttnFunc", 0, 100, args=shaped([[S, B, H, D]] * 3))
    builder.gpu("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", 200, 210, launch=20)
    found = work_flops(builder.timeline(tmp_path))
    assert found is not None
    assert found.flops.tolist() == [4 * B * H * S * S * D // 2]


def test_the_peak_of_a_module_in_eight_bits_is_twice_as_high(tmp_path: Path) -> None:
    shares = []
    for kernel in ("nvjet_tst_64x64", "nvjet_qqtst_64x64"):
        builder = TraceBuilder().step(1, 0, 1000)
        builder.annotation("mlp: MLP", 0, 100)
        builder.op("aten::mm", 20, 30, args=shaped([[3, 5], [5, 7]]))
        builder.gpu(kernel, 200, 210, launch=25)
        (row,) = look_at_modules(builder.timeline(tmp_path), peak_tflops=0.084).rows
        shares.append(row.peak_share)
    assert shares == [pytest.approx(0.25), pytest.approx(0.125)]
