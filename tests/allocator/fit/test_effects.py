# SPDX-License-Identifier: Apache-2.0
"""What flags would free, of a rank whose memory is known at two moments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatron.torch_trace.allocator.fit.effects import Effect, effects_of
from megatron.torch_trace.allocator.fit.moments import Moments
from megatron.torch_trace.allocator.fit.outside import outside_of_torch
from megatron.torch_trace.allocator.ranks.shape import shape_of
from megatron.torch_trace.format.integer_arrays import ints

MIB = 1 << 20
USUAL: dict[str, Any] = {
    "micro_batch_size": 1,
    "global_batch_size": 32,
    "seq_length": 1024,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "ffn_hidden_size": 4096,
    "padded_vocab_size": 32768,
    "num_layers": 4,
    "data_parallel_size": 4,
    "sequence_parallel": False,
    "use_distributed_optimizer": False,
    "recompute_granularity": None,
}
"""sbh is 1 MiB: a layer keeps 34 MiB and 80 of core attention; 80 Mi parameters, 48 of layers."""


def moments(*, other: int = 1_500, core: int = 320, begun: int = -1, layers: int = 456) -> Moments:
    """The deepest forward pass, and another moment with so many MiB in use; all in MiB."""
    state = {"optimizer": 960, "parameters": 160, "gradients": 320}

    def column(*values: int) -> Any:
        return ints(np.array([value * MIB for value in values], dtype=np.int64))

    return Moments(
        in_use=column(sum(state.values()) + layers, other),
        scaling=column(layers, 0),
        unsure=column(0, 0),
        layers=column(layers, 0),
        core=column(core, 0),
        **{name: column(size, size) for name, size in state.items()},
        begun=ints(np.array([begun, 0])),
    )


def freed(found: tuple[Effect, ...]) -> dict[str, tuple[int | None, int | None]]:
    """MiB that each change frees, and its error; by the last word of its first flag."""
    return {
        " ".join(one.change.removeprefix("--").split()[:2]): (
            None if one.frees is None else round(one.frees / MIB),
            None if one.error is None else round(one.error / MIB),
        )
        for one in found
    }


def effects(its: Moments, stage: int = 0, **more: Any) -> dict[str, tuple[int | None, int | None]]:
    shape = shape_of(USUAL | more, {}, stage)
    assert shape is not None
    return freed(effects_of(its, shape))


SELECTIVE, FULL = "recompute-activations", "recompute-granularity full"
DISTRIBUTED = "use-distributed-optimizer"
STAGES = "pipeline-model-parallel-size 2"


def test_each_flag_frees_what_is_measured_of_it() -> None:
    assert effects(moments()) == {
        # 78 of 80 MiB of all layers but one, whose attention is computed again.
        SELECTIVE: (234, 80),
        # The inputs of four layers stay, and one whole layer.
        FULL: (4 * 112 - 114, 114),
        DISTRIBUTED: (720, 19),
        # Half of 48 of 80 parts of the state.
        STAGES: ((480 + 960) * 48 // 80 // 2, 0),
    }


def test_no_more_is_freed_than_another_moment_leaves() -> None:
    found = effects(moments(other=1_800))
    assert (found[SELECTIVE], found[FULL]) == ((96, 80), (96, 114))
    assert found[DISTRIBUTED] == (720, 19)


def test_no_more_is_freed_than_there_is() -> None:
    """As if two of four layers' micro-batches had their activations elsewhere at the moment."""
    found = effects(moments(layers=30, core=20, other=0))
    assert found[SELECTIVE][0] is not None
    assert 0 <= found[SELECTIVE][0] <= 30


def test_a_shard_of_the_optimizer_is_of_half_as_many_layers_on_half_as_many_replicas() -> None:
    found = effects(moments(), use_distributed_optimizer=True)
    assert found[STAGES] == (480 * 48 // 80 // 2, 0)
    assert DISTRIBUTED not in found


@pytest.mark.parametrize(
    "more", [{"data_parallel_size": 1}, {"num_layers": 3}, {"use_torch_fsdp2": True}]
)
def test_more_stages_need_replicas_and_layers_to_divide(more: dict[str, Any]) -> None:
    assert STAGES not in effects(moments(), **more)


def test_a_replica_on_several_gpus_of_context_parallelism_is_one() -> None:
    assert STAGES not in effects(moments(), data_parallel_size=1, context_parallel_size=4)


def test_a_layer_less_frees_its_state_and_its_activations_of_each_micro_batch() -> None:
    """The last of two stages with two layers and the loss, one micro-batch kept."""
    its = moments(layers=228, core=160)
    name = "pipeline-model-parallel-layout with"
    more = {"num_layers": 4, "pipeline_model_parallel_size": 2, "padded_vocab_size": 57_344}
    # 24 Mi parameters of two layers, and 56 of the embedding or the loss.
    state = (480 + 960) * 24 / 80
    assert effects(its, 1, **more)[name] == (round(state / 2) + 114, 114)
    # The first stage keeps two micro-batches.
    first = moments(layers=456)
    assert effects(first, 0, **more)[name] == (round(state / 2) + 2 * 114, 114)


@pytest.mark.parametrize(
    ("lines", "outside"),
    [
        ([(3.0, 2.0), (4.0, 2.5), (3.5, 3.0)], 1.5),
        ([(2.0, 3.0)], None),  # of another process's GPU
        ([(2.0, 2.0)], 0.0),
        ([], None),
    ],
)
def test_what_is_not_torch_s_is_the_most_that_the_gpu_had_beside_it(
    lines: list[tuple[float, float]], outside: float | None, tmp_path: Path
) -> None:
    text = "\n".join(
        f'{{"gpu/memory_used_gib": {used}, "memory/reserved_gib": {reserved}}}'
        for used, reserved in lines
    )
    (tmp_path / "metrics.jsonl").write_text(f"{text}\nnot json\n")
    assert outside_of_torch(tmp_path) == (None if outside is None else outside * (1 << 30))
