# SPDX-License-Identifier: Apache-2.0
"""Names of kernels for people: families, names that compilers mangled, names that are alike."""

from __future__ import annotations

import pytest

from megatron.torch_trace.analysis.timeline.kernel_names import (
    distinct_names,
    family_of,
    short_name,
)

ADAM = (
    "_ZN2at6native12_GLOBAL__N_125multi_tensor_apply_kernelINS1_18TensorListMetadataILi4EEE"
    "11AdamFunctorEEvT_"
)


@pytest.mark.parametrize(
    ("name", "short", "family"),
    [
        (ADAM, "multi_tensor_apply_kernel [AdamFunctor]", "optimizer"),
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEEEEviT0_",
            "vectorized_elementwise_kernel [CUDAFunctor_add]",
            "elementwise",
        ),
        ("_Z13reduce_kernelILi512EEvPf.kd", "reduce_kernel", "reduction"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32.kd", "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32", "gemm"),
        # What is no mangled name stays what it is.
        ("_ZN", "_ZN", "other"),
        ("_Zoo", "_Zoo", "other"),
    ],
)
def test_a_mangled_name_is_read_for_people(name: str, short: str, family: str) -> None:
    assert (short_name(name), family_of(name)) == (short, family)


@pytest.mark.parametrize(
    "name",
    [
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true>(int)",
        "void cudnn::bn_bw_1C11_singleread<float, 512>(int)",
        "MIOpenBatchNormFwdTrainSpatial",
    ],
)
def test_batch_normalisation_of_a_convolution_library_is_normalisation(name: str) -> None:
    assert family_of(name) == "normalisation"


def test_a_convolution_of_the_same_library_is_convolution() -> None:
    assert family_of("void cudnn::cnn::conv2d_grouped_direct_kernel<false>(int)") == "convolution"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["void k<float, 4>(int)", "void k<half, 4>(int)"], ["k [float]", "k [half]"]),
        (["a::k<1, 2>", "a::k<1, 3>", "b::k<1, 2>"], ["k [a, 2]", "k [a, 3]", "k [b, 2]"]),
        (["void k(int)", "void  k(int)", "other"], ["k [1]", "k [2]", "other"]),
    ],
)
def test_different_kernels_never_have_one_name(names: list[str], told: list[str]) -> None:
    assert distinct_names(names) == told


ENGINE = "void transformer_engine::"
UNARY = (
    ENGINE + "unary_kernel<16, true, float, transformer_engine::Empty, {}, __nv_bfloat16, "
    "__nv_fp8_e4m3>(__nv_bfloat16 const*, float const*, __nv_fp8_e4m3*, float*, unsigned long)"
)
IDENTITY = "&transformer_engine::dispatch::fp8::detail::identity"
GELU = "&(float transformer_engine::gelu<float, float>(float, transformer_engine::Empty const&))"


@pytest.mark.parametrize(
    ("name", "family"),
    [
        (f"{ENGINE}detail::cast_transpose_general_kernel<8, 8, true, float>(int)", "quantisation"),
        ("cast_transpose_optimized_kernel", "quantisation"),
        (f"{ENGINE}dispatch::fp8::cast_fp8_2D_kernel<false, __nv_bfloat16>(CUtensorMap)",
         "quantisation"),
        (f"{ENGINE}dgated_act_cast_transpose_kernel<8, 8>(int)", "quantisation"),
        (f"{ENGINE}dispatch::mxfp8::quantize_mxfp8_kernel<true>(int)", "quantisation"),
        (UNARY.format(IDENTITY), "quantisation"),
        (UNARY.format(GELU), "elementwise"),
        (f"{ENGINE}gated_act_kernel<8, float>(int)", "elementwise"),
        (f"{ENGINE}(anonymous namespace)::amax_kernel<8, true, __nv_bfloat16>(int)",
         "amax and scales"),
        (f"{ENGINE}(anonymous namespace)::zero_amax_kernel(float*, float const*)",
         "amax and scales"),
        ("transformer_engine::delayed_scaling_recipe::(anonymous namespace)::"
         "amax_and_scale_update_impl::kernel_bulk(float*, int)", "amax and scales"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<3>, transformer_engine::"
         "multi_tensor_compute_scale::ComputeScaleAndScaleInvFunctor, float>(long)",
         "amax and scales"),
        (f"{ENGINE}(anonymous namespace)::swizzle_row_scaling_kernel<int4, 128, 4>(int)",
         "amax and scales"),
        (f"{ENGINE}normalization::rmsnorm_fwd_tuned_kernel<Kernel_traits>(int)", "normalisation"),
        (f"{ENGINE}normalization::ln_bwd_finalize_tuned_kernel<Kernel_traits>(int)",
         "normalisation"),
        (f"{ENGINE}fused_rope_forward_kernel<__nv_bfloat16>(int)", "rotary embedding"),
        (f"{ENGINE}fused_rope_thd_linear_grid_forward_kernel<__half>(int)", "rotary embedding"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1",
         "attention"),
        ("void cudnn::fusion::compute_dot_do_o_specialized<true, 128>(void const*)", "attention"),
        ("void cudnn::fusion::convert_dq_to_16bits<true>(void const*, void*)", "attention"),
        ("void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16, long>(long)",
         "embedding"),
        ("void at::native::(anonymous namespace)::krn_partial_segment_offset<long>(long*)",
         "embedding"),
        ("nvjet_sm90_qrtst_128x128_128x6_2x1_v_bz_coopA_algo2_TNT", "gemm"),
        ("nvjet_qqtst_128x256_128x4_2x1_v_bz_TNT", "gemm"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4, false>, transformer_engine::"
         "multi_tensor_adam::AdamFunctorMaster<__nv_bfloat16, float>, float>(long)", "optimizer"),
        (f"{ENGINE}moe_permute_kernel<__nv_bfloat16, 8>(int)", "mixture of experts"),
        (f"{ENGINE}multi_padding_kernel<16, int>(int)", "mixture of experts"),
        ("_row_id_map_pass_1_kernel", "mixture of experts"),
        ("_sort_chunks_by_map_kernel", "mixture of experts"),
        # A softmax that inductor wrote has an amax of its own, and is no quantisation.
        ("triton_per_fused_amax_exp_sub_sum_3", "fused (inductor)"),
    ],
)  # fmt: skip
def test_kernels_of_transformer_engine_have_their_families(name: str, family: str) -> None:
    assert family_of(name) == family


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("void cuComputeGradInput<c10::BFloat16, float, c10::BFloat16, false>("
         "c10::BFloat16 const*, c10::BFloat16 const*, int, int, float const*)", "normalisation"),
        ("cleanup(float*, float*, float*, float*, bool, int)", "optimizer"),
        ("void (anonymous namespace)::indexing_backward_kernel_stride_1<c10::BFloat16>("
         "long const*, long const*, c10::BFloat16 const*)", "embedding"),
        ("a_cleanup_of_mine(float*)", "other"),
    ],
)  # fmt: skip
def test_kernels_of_apex_and_of_indexed_gradients_have_their_families(
    name: str, family: str
) -> None:
    assert family_of(name) == family


def test_a_conversion_and_an_activation_by_one_kernel_have_different_names() -> None:
    assert short_name(UNARY.format(IDENTITY)) == "unary_kernel [identity]"
    assert short_name(UNARY.format(GELU)) == "unary_kernel [gelu]"
