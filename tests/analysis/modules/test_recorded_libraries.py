# SPDX-License-Identifier: Apache-2.0
"""Trainings with Apex, and with delayed weight gradients and context parallelism of Transformer
Engine, on H200."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron import torch_trace
from megatron.torch_trace.analysis.results.analysis import RankResult

DATA = Path(__file__).parents[2] / "data"
LAYERS, MICRO_BATCHES = 4, 4
CALLS = LAYERS * MICRO_BATCHES


def rank_of(folder: str) -> RankResult:
    (rank,) = torch_trace.analyze(DATA / folder).ranks
    return rank


@pytest.fixture(scope="module")
def delayed() -> RankResult:
    return rank_of("te-moe-delayed")


@pytest.fixture(scope="module")
def cp2() -> RankResult:
    return rank_of("te-cp2")


@pytest.fixture(scope="module")
def apex() -> RankResult:
    return rank_of("apex")


def test_delayed_weight_gradients_are_work_of_their_module_and_no_call(delayed: RankResult) -> None:
    rows = {
        row.type: (row.calls, row.backward_calls, row.kernels, row.backward_kernels)
        for row in delayed.module_classes
        if "Linear" in row.type and row.type.startswith("TE")
    }
    # Two experts a rank: two products forward; two of inputs, two of weights, and their sums.
    assert rows == {
        "TEColumnParallelGroupedLinear": (CALLS, CALLS, 2 * CALLS, 8 * CALLS),
        "TERowParallelGroupedLinear": (CALLS, CALLS, 2 * CALLS, 8 * CALLS),
        "TELayerNormColumnParallelLinear": (CALLS, CALLS, 2 * CALLS, 7 * CALLS),
        "TERowParallelLinear": (CALLS, CALLS, CALLS, 3 * CALLS),
    }


def test_the_gathering_of_counts_was_in_no_module_when_this_was_recorded(
    delayed: RankResult,
) -> None:
    account = delayed.module_account
    assert account is not None
    first = account.outside[0]
    assert (first.operator, first.kernels) == ("_GatherFromSequenceParallelRegion", CALLS)


def test_apexs_kernels_have_families(apex: RankResult) -> None:
    named = {row.name.partition("(")[0].partition("<")[0]: row.family for row in apex.kernels}
    assert {
        name: named[name]
        for name in ("void cuApplyLayerNorm", "void cuComputeGradInput", "cleanup")
    } == {
        "void cuApplyLayerNorm": "normalisation",
        "void cuComputeGradInput": "normalisation",
        "cleanup": "optimizer",
    }
    assert "other" not in named.values()


def test_apexs_norms_have_their_own_rows(apex: RankResult) -> None:
    (norm,) = (row for row in apex.module_classes if row.type == "FusedLayerNorm")
    norms = (2 * LAYERS + 1) * MICRO_BATCHES
    assert (norm.calls, norm.backward_calls, norm.kernels) == (norms, norms, norms)


def test_keys_and_values_are_sent_around_in_every_attention_forward_and_backward(
    cp2: RankResult,
) -> None:
    rows = [(row.dimension, row.collective, row.calls) for row in cp2.communication]
    # Forward sends keys and values once; backward sends them again, and their gradients back.
    assert [row for row in rows if row[0] == "cp"] == [("cp", "send_recv", 3 * CALLS)]
    (attention,) = (row for row in cp2.module_classes if row.type == "TEDotProductAttention")
    assert (attention.calls, attention.backward_calls) == (CALLS, CALLS)
    assert {row.family for row in cp2.families} == {
        "attention", "cast or copy", "communication", "elementwise", "embedding",
        "fused (inductor)", "gemm", "memory", "normalisation", "optimizer", "reduction",
    }  # fmt: skip


@pytest.mark.parametrize("folder", ["apex", "te-moe-delayed", "te-cp2"])
def test_every_forward_and_backward_has_its_number(
    folder: str, request: pytest.FixtureRequest
) -> None:
    rank: RankResult = request.getfixturevalue(folder.rpartition("-")[2])
    numbers = [row.number for row in rank.microbatches]
    assert sorted(map(str, numbers)) == [str(number) for number in range(MICRO_BATCHES)]
    assert all(row.forward_ns and row.backward_ns for row in rank.microbatches)
