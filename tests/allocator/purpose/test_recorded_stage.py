# SPDX-License-Identifier: Apache-2.0
"""The first of two pipeline stages, recorded on an H200 with what the training says it holds."""

from __future__ import annotations

from pathlib import Path

from megatron import torch_trace
from megatron.torch_trace.allocator.purpose.categories import Category
from megatron.torch_trace.allocator.purpose.without_stack import BLAS_WORKSPACE

RECORDED = Path(__file__).parents[2] / "data" / "memory-pp2" / "rank-0.memory_snapshot.pickle.gz"


def test_all_of_the_peak_has_a_category_but_one_kilobyte() -> None:
    (answer,) = torch_trace.memory(RECORDED)
    # Of the allocator's own peak of these iterations, 2.571 GB.
    assert answer.categories == {
        Category.PARAMETERS: 215_037_952,
        Category.GRADIENTS: 429_916_160,
        Category.OPTIMIZER_STATE: 1_291_276_800,
        Category.ACTIVATIONS: 456_753_152,
        Category.TEMPORARIES: 75_511_808,
        Category.COMMUNICATION: 28_311_552,
        Category.OTHER: 67_108_864,
        Category.UNKNOWN: 1_024,
    }


def test_cublas_has_a_workspace_for_each_of_two_threads() -> None:
    (answer,) = torch_trace.memory(RECORDED)
    found = [one for one in answer.holders if one.stack == (BLAS_WORKSPACE,)]
    assert [(one.size, one.blocks) for one in found] == [(2 * (32 << 20), 2)]
