# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import BACKWARD, GEMM, NCCL, SENDRECV, TraceBuilder

from megatron.torch_trace.analysis.gpu_work.kernels import (
    BEFORE,
    NO_OPERATOR,
    Casts,
    FamilyRow,
    KernelRow,
    OperatorRow,
    casts,
    family_rows,
    kernel_rows,
    operator_rows,
)
from megatron.torch_trace.analysis.timeline.kernel_names import family_of, short_name


def test_each_name_has_its_calls_time_and_share_of_the_window(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 200)
    trace.gpu(GEMM, 10, 30, launch=1).gpu(GEMM, 40, 100, launch=2).gpu(NCCL, 150, 190, launch=3)
    assert kernel_rows(trace.timeline(tmp_path)) == (
        KernelRow(GEMM, "compute", "gemm", 2, 80, 40.0, 40, 60, 0.4),
        KernelRow(NCCL, "communication", "communication", 1, 40, 40.0, 40, 40, 0.2),
    )


def test_families_are_unions_and_carry_their_class(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100)
    trace.gpu(GEMM, 10, 30, launch=1).gpu("ampere_bf16_gemm", 20, 40, launch=2, stream=8)
    trace.gpu("Memset (Device)", 50, 60, launch=3, cat="gpu_memset")
    assert family_rows(trace.timeline(tmp_path)) == (
        FamilyRow("gemm", "compute", 2, 30, 0.3),
        FamilyRow("memory", "memory", 1, 10, 0.1),
    )


def test_work_belongs_to_the_innermost_operator_that_launched_it(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 1000)
    trace.op("aten::linear", 10, 60).op("aten::mm", 20, 50)
    trace.gpu(GEMM, 500, 600, launch=30).gpu(GEMM, 600, 610, launch=55)
    # Another thread's operator at the same time has nothing to do with it.
    trace.op("aten::mul", 0, 100, tid=BACKWARD)
    trace.gpu("k", 700, 705, launch=900).gpu("k", 710, 717)
    assert operator_rows(trace.timeline(tmp_path)) == (
        OperatorRow("aten::mm", None, 1, 1, 100, 0.1),
        OperatorRow("aten::linear", None, 1, 1, 10, 0.01),
        OperatorRow(BEFORE, None, 0, 1, 7, 0.007),
        OperatorRow(NO_OPERATOR, None, 0, 1, 5, 0.005),
    )


def test_one_launch_of_a_graph_is_many_kernels(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100).op("graph", 0, 20)
    trace.gpu(GEMM, 30, 40, launch=10, call="cudaGraphLaunch")
    for start in (40, 50):
        args = {"device": 0, "stream": 7, "correlation": trace.correlation}
        trace.slice("kernel", GEMM, start, 10, pid=0, tid=7, args=args)
    assert operator_rows(trace.timeline(tmp_path)) == (OperatorRow("graph", None, 1, 3, 30, 0.3),)


def test_pipeline_kernels_which_no_operator_launches_go_by_their_range(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100).annotation("nccl:coalesced", 0, 20)
    trace.gpu(SENDRECV, 30, 50, launch=10)
    assert operator_rows(trace.timeline(tmp_path)) == (
        OperatorRow("nccl:coalesced", None, 1, 1, 20, 0.2),
    )


def test_by_shape_calls_of_one_operator_are_told_apart(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100)
    for at, dims in ((0, [[2, 3]]), (20, [[4, 5]]), (40, [[2, 3]])):
        trace.op("aten::mm", at, at + 10, args={"Input Dims": dims})
        trace.gpu(GEMM, at + 10, at + 15, launch=at + 1)
    assert operator_rows(trace.timeline(tmp_path), by_shape=True) == (
        OperatorRow("aten::mm", "[[2, 3]]", 2, 2, 10, 0.1),
        OperatorRow("aten::mm", "[[4, 5]]", 1, 1, 5, 0.05),
    )


def test_conversions_are_kernels_below_to_copy_and_copies_are_not(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100).op("aten::_to_copy", 0, 20).op("aten::copy_", 5, 15)
    trace.gpu("unrolled_elementwise_kernel", 30, 40, launch=8)
    trace.gpu("Memcpy HtoD", 40, 45, launch=9, cat="gpu_memcpy").gpu(GEMM, 50, 60, launch=30)
    assert casts(trace.timeline(tmp_path)) == Casts(1, 10, 0.1)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        (GEMM, "gemm"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_nn>(Params)", "gemm"),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_clmp_swiGlu_dynBatch_sm100f", "gemm"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>(Flash_fwd_params)", "attention"),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64", "attention"),
        ("void at::native::(anonymous namespace)::cuComputeGradInput_layer_norm<float>(int)",
         "normalisation"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)",
         "elementwise"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<AdamFunctor>(int)",
         "optimizer"),
        ("triton_red_fused_native_layer_norm_0", "normalisation"),
        ("triton_poi_fused_add_mul_3", "fused (inductor)"),
        ("triton_poi_fused__to_copy_exp_mul_permute_select_view_1", "fused (inductor)"),
        ("triton_red_fused_native_layer_norm_permute_0", "normalisation"),
        ("triton_mine", "triton"),
        ("something_else_entirely", "other"),
    ],
)  # fmt: skip
def test_kernels_have_families(name: str, family: str) -> None:
    assert family_of(name) == family


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
         "std::array<char*, 3ul> >(int, float)", "vectorized_elementwise_kernel [CUDAFunctor_add]"),
        ("void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, 11>(int)",
         "softmax_warp_forward"),
        ("std::enable_if<(((8)>(0))), void>::type vllm::fused_add_rms_norm_kernel<8>(int)",
         "fused_add_rms_norm_kernel"),
        ("void cutlass::Kernel<cutlass_80_tensorop_gemm>(Params)", "cutlass_80_tensorop_gemm"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
        (NCCL, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
        ("</script><img src=x>", "</script><img src=x>"),
    ],
)  # fmt: skip
def test_names_for_people_are_short(name: str, short: str) -> None:
    assert short_name(name) == short
