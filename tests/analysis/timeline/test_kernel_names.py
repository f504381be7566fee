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
