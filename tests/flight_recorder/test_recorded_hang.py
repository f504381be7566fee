# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a sentence that users read stands on one line)
"""A hang of Megatron over NCCL, recorded with two tensor-parallel ranks that share an H200."""

from __future__ import annotations

from pathlib import Path

from megatron.torch_trace.flight_recorder.answer import hang

RECORDED = Path(__file__).parents[1] / "data" / "hang-size"


def test_the_rank_that_reduces_half_of_a_tensor_is_named() -> None:
    answer = hang(RECORDED)
    assert answer.culprits == (1,)
    assert answer.verdict == (
        "Rank 1 calls tensor-parallel all_reduce 237 with [2048] BFloat16, where rank 0 calls all_reduce [64, 1, 64] BFloat16."
    )
