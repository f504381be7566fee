# SPDX-License-Identifier: Apache-2.0
"""Bytes of a layer by formula, with numbers that can be had by hand."""

from __future__ import annotations

from typing import Any

import pytest

from megatron.torch_trace.allocator.fit.formulas import (
    LayerFormula,
    layer_formula,
    layer_parameters,
)
from megatron.torch_trace.allocator.ranks.shape import shape_of

SBH = 1 << 20
"""s = h = 1,024 and b = 1; with 16 heads 5as²b is 80 times as much."""
USUAL = {
    "micro_batch_size": 1,
    "seq_length": 1024,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "ffn_hidden_size": 4096,
}


@pytest.mark.parametrize(
    ("more", "fused", "linear", "core", "kept"),
    [
        ({}, False, 34, 80, 2),
        ({}, True, 34, 0, 2),
        ({"recompute_granularity": "selective"}, False, 34, 0, 2),
        ({"tensor_model_parallel_size": 2}, False, 10 + 12, 40, 2),
        ({"tensor_model_parallel_size": 2, "sequence_parallel": True}, False, 17, 40, 1),
    ],
)
def test_a_layer_keeps_what_the_paper_has(
    more: dict[str, Any], fused: bool, linear: float, core: float, kept: float
) -> None:
    shape = shape_of(USUAL | more, {}, 0)
    assert shape is not None
    assert layer_formula(shape, fused=fused) == LayerFormula(
        SBH, linear * SBH, core * SBH, kept * SBH
    )


def test_ranks_of_context_parallelism_share_the_sequence() -> None:
    shape = shape_of(USUAL | {"context_parallel_size": 4}, {}, 0)
    assert shape is not None
    assert layer_formula(shape, fused=True) == LayerFormula(SBH / 4, 34 * SBH / 4, 0, 2 * SBH / 4)


@pytest.mark.parametrize(
    ("more", "matrices"),
    [({}, 12), ({"swiglu": True}, 16), ({"tensor_model_parallel_size": 2}, 6)],
)
def test_a_layer_has_four_matrices_of_attention_and_those_of_its_mlp(
    more: dict[str, Any], matrices: float
) -> None:
    shape = shape_of(USUAL | more, {}, 0)
    assert shape is not None
    assert layer_parameters(shape) == matrices * SBH


def test_of_experts_or_unknown_sizes_there_is_no_formula() -> None:
    for more in ({"num_experts": 8}, {"hidden_size": None}):
        shape = shape_of(USUAL | more, {}, 0)
        assert shape is not None
        assert layer_formula(shape, fused=True) is None
        assert layer_parameters(shape) is None
