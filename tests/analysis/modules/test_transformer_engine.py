# SPDX-License-Identifier: Apache-2.0
"""A training in FP8 with Transformer Engine 2.20, recorded on an H200: families, modules, FLOPs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run

RECORDED = Path(__file__).parents[2] / "data" / "te-fp8"
LAYERS, MICRO_BATCHES = 4, 2
HIDDEN, SEQUENCE, BATCH = 2048, 2048, 2
TOKENS = SEQUENCE * BATCH
FFN = 5440
"""Of SwiGLU: what Megatron makes of 4 x HIDDEN x 2 / 3, as a multiple of 64."""
PROJECTIONS = 2 * TOKENS * HIDDEN * (3 + 1) * HIDDEN
ATTENTION = 4 * SEQUENCE**2 * HIDDEN * BATCH
"""Scores and values without a mask: the recording does not tell one."""
MLP = 2 * TOKENS * HIDDEN * (2 + 1) * FFN


@pytest.fixture(scope="module")
def rank() -> dict[str, Any]:
    answer = run("analyze", str(RECORDED), "--json", "--no-gains")
    found: dict[str, Any] = json.loads(answer.stdout)["ranks"][0]
    return found


def test_every_kernel_has_a_family(rank: dict[str, Any]) -> None:
    assert [one["name"] for one in rank["kernels"] if one["family"] == "other"] == []


def test_casts_to_eight_bits_and_maxima_are_rows_of_their_own(rank: dict[str, Any]) -> None:
    calls = {one["family"]: one["calls"] for one in rank["families"]}
    assert (calls["quantisation"], calls["amax and scales"]) == (64, 4)


def test_products_of_each_module_are_those_of_its_formula(rank: dict[str, Any]) -> None:
    calls = LAYERS * MICRO_BATCHES
    flops = {
        one["type"]: (one["calls"], one["flops"], one["backward_flops"])
        for one in rank["module_classes"]
        if one["type"] in ("MLP", "TEDotProductAttention", "SelfAttention", "TransformerLayer")
    }
    # Attention's backward computes the scores again: five products where the forward has two.
    attention = (PROJECTIONS + ATTENTION, 2 * PROJECTIONS + 5 * ATTENTION // 2)
    assert flops == {
        "MLP": (calls, calls * MLP, calls * 2 * MLP),
        "TEDotProductAttention": (calls, calls * ATTENTION, calls * 5 * ATTENTION // 2),
        "SelfAttention": (calls, *(calls * one for one in attention)),
        "TransformerLayer": (
            calls,
            calls * (attention[0] + MLP),
            calls * (attention[1] + 2 * MLP),
        ),
    }


def test_nearly_all_work_of_micro_batches_is_in_a_module(rank: dict[str, Any]) -> None:
    account = rank["module_account"]
    assert account["microbatch_unattributed_ns"] < 0.02 * account["microbatch_ns"]


def test_every_module_has_its_backward_spans(rank: dict[str, Any]) -> None:
    # They were drawn into the trace after training, from autograd's numbers.
    no_gradient = "RotaryEmbedding"
    calls = {
        one["type"]: (one["calls"], one["backward_calls"])
        for one in rank["module_classes"]
        if one["type"] != no_gradient
    }
    assert all(forward == backward for forward, backward in calls.values()), calls


@pytest.fixture(scope="module")
def tensor_parallel() -> dict[str, Any]:
    """With sequence parallel: norms and products are one module each, and communicate."""
    answer = run("analyze", str(RECORDED.with_name("te-tp2-fp8")), "--json", "--no-gains")
    found: dict[str, Any] = json.loads(answer.stdout)["ranks"][0]
    return found


def test_in_tensor_parallel_every_kernel_has_a_family_too(tensor_parallel: dict[str, Any]) -> None:
    calls = {one["family"]: one["calls"] for one in tensor_parallel["families"]}
    assert "other" not in calls
    assert (calls["quantisation"], calls["amax and scales"]) == (112, 8)


def test_modules_of_tensor_parallel_are_called_forward_and_backward_as_often(
    tensor_parallel: dict[str, Any],
) -> None:
    calls = {
        one["type"]: (one["calls"], one["backward_calls"])
        for one in tensor_parallel["module_classes"]
        if one["type"].startswith("TE")
    }
    layers = 4 * 4  # of each micro-batch
    assert calls == {
        "TELayerNormColumnParallelLinear": (2 * layers, 2 * layers),
        "TERowParallelLinear": (2 * layers, 2 * layers),
        "TEDotProductAttention": (layers, layers),
    }
    account = tensor_parallel["module_account"]
    assert account["microbatch_unattributed_ns"] < 0.001 * account["microbatch_ns"]
