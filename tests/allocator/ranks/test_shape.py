# SPDX-License-Identifier: Apache-2.0
"""The shape of a rank's part of the model, and the micro-batches that 1F1B keeps there."""

from __future__ import annotations

from typing import Any

import pytest

from megatron.torch_trace.allocator.ranks.shape import Shape, arguments_of, shape_of

USUAL = {
    "micro_batch_size": 2,
    "global_batch_size": 64,
    "data_parallel_size": 4,
    "pipeline_model_parallel_size": 4,
    "num_layers": 8,
    "hidden_size": 1024,
}


def shape(stage: int | None = 0, **more: Any) -> Shape:
    found = shape_of(USUAL | more, {}, stage)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({}, 8),
        ({"context_parallel_size": 2}, 8),  # a replica is on twice as many GPUs
        ({"global_batch_size": 7}, 1),
        ({"global_batch_size": None}, None),
        ({"data_parallel_size": None}, None),
    ],
)
def test_micro_batches_are_the_batch_of_a_replica_divided(
    more: dict[str, Any], count: int | None
) -> None:
    assert shape(**more).microbatches == count


@pytest.mark.parametrize(
    ("stage", "more", "kept"),
    [
        (0, {}, 4),
        (1, {}, 3),
        (3, {}, 1),
        (0, {"global_batch_size": 16}, 2),  # there are no more
        (0, {"pipeline_model_parallel_size": 1}, 1),
        (2, {"pipeline_model_parallel_size": 1}, 1),
        (0, {"virtual_pipeline_model_parallel_size": 2}, None),
        (0, {"global_batch_size": None}, None),
    ],
)
def test_a_stage_keeps_as_many_as_stages_follow_and_one_more(
    stage: int, more: dict[str, Any], kept: int | None
) -> None:
    assert shape(stage, **more).in_flight() == kept


def test_larger_micro_batches_are_fewer() -> None:
    assert [shape(0).in_flight(size) for size in (2, 4, 8, 16, 64)] == [4, 4, 2, 1, 1]


@pytest.mark.parametrize(
    ("more", "layers"),
    [
        ({}, 2),
        ({"num_layers": 9}, None),
        ({"num_layers": None}, None),
        ({"decoder_first_pipeline_num_layers": 1}, None),
        ({"pipeline_model_parallel_layout": "Et*8L"}, None),
    ],
)
def test_layers_of_a_stage_are_known_where_stages_are_alike(
    more: dict[str, Any], layers: int | None
) -> None:
    assert shape(**more).layers_here == layers


def test_what_the_arguments_do_not_tell_is_megatron_s_default_or_comes_from_the_layout() -> None:
    found = shape_of({"micro_batch_size": 1, "hidden_size": 1024}, {"tp": 2, "pp": 4, "dp": 3}, 9)
    assert found is not None
    assert (found.tensor, found.pipeline, found.context, found.data) == (2, 4, 1, 3)
    assert (found.ffn, found.virtual, found.stage, found.dense) == (4096, 1, 9, True)
    alone = shape_of({"micro_batch_size": 1}, {}, 9)
    assert alone is not None
    # Without a pipeline nothing is on another stage than the first.
    assert (alone.stage, alone.ffn, alone.data) == (0, None, None)
    assert shape_of({"hidden_size": 8}, {}, 0) is None


def test_a_command_line_tells_the_same() -> None:
    argv = ["train.py", "--micro-batch-size", "2", "--swiglu", "--recompute-activations"]
    found = arguments_of([*argv, "--hidden-size", "8", "--num-layers", "x"])
    assert {name: one for name, one in found.items() if one} == {
        "micro_batch_size": 2,
        "hidden_size": 8,
        "swiglu": True,
        "recompute_granularity": "selective",
    }
    assert arguments_of(["train.py", "--hidden-size", "8"]) == {}
