# SPDX-License-Identifier: Apache-2.0
"""Recorded ranks as stages of copies of the model, with the steps that all of them have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from megatron.torch_trace.analysis.replay.answers import UnreplayableError
from megatron.torch_trace.analysis.replay.spans.orders import Shape
from megatron.torch_trace.analysis.replay.spans.recorded_steps import Recording, recording_of


def rank(
    stage: int,
    *,
    dp: int = 0,
    ep: int = 0,
    steps: tuple[int, ...] = (5, 6),
    whole: bool = True,
    argv: tuple[str, ...] = (),
    layers: int = 0,
) -> Any:
    """A rank of two stages with four micro-batches."""
    rows = [SimpleNamespace(step=one, stages=2, microbatches=4, chunks=1) for one in steps]
    return SimpleNamespace(
        coordinates={"pp": stage, "dp": dp, "ep": ep},
        steps=[SimpleNamespace(step=one) for one in steps],
        recorded_iteration_ns=100 if whole else None,
        pipeline=rows,
        microbatches=[],
        settings=argv,
        modules=[
            SimpleNamespace(module=f"decoder.layers.{number}{part}")
            for number in range(layers)
            for part in ("", ".mlp")
        ],
    )


def recording(*ranks: Any) -> Recording:
    return recording_of((one, None) for one in ranks)  # type: ignore[misc]


def test_only_steps_that_all_ranks_have_count() -> None:
    found = recording(rank(0, steps=(4, 5, 6)), rank(1, steps=(5, 6, 7)))
    assert (found.shape, found.steps) == (Shape(2, 1, 4), (5, 6))
    with pytest.raises(UnreplayableError, match=r"^the ranks have no step in common\.$"):
        recording(rank(0, steps=(4,)), rank(1, steps=(5,)))
    with pytest.raises(UnreplayableError, match="do not have one whole step of all ranks"):
        recording(rank(0), rank(1, whole=False))


def test_steps_in_which_several_models_train_are_not_replayed() -> None:
    both = rank(0)
    both.microbatches = [
        SimpleNamespace(number=0, chunk=None, model=name) for name in ("actor", "critic")
    ]
    with pytest.raises(UnreplayableError, match=r"^several models train in the window, each with"):
        recording(both, rank(1))
    both.microbatches.pop()
    assert recording(both, rank(1)).shape == Shape(2, 1, 1)


def test_ranks_of_experts_that_share_a_replica_are_of_one_copy_of_the_model() -> None:
    plain = recording(rank(0), rank(1), rank(0, dp=1), rank(1, dp=1))
    assert (plain.copies, len(plain.by_place()[1, 0])) == ((0, 1), 1)
    experts = recording(rank(0), rank(1), rank(0, dp=1, ep=1), rank(1, dp=1, ep=1))
    assert (experts.copies, len(experts.by_place()[0, 1])) == ((0,), 2)


@pytest.mark.parametrize(
    ("argv", "layers"),
    [
        (("--num-layers", "8"), (4, 4)),
        (("--num-layers", "9"), None),
        (("--num-layers", "x"), None),
        ((), None),
        (("--num-layers", "8", "--decoder-first-pipeline-num-layers", "3"), None),
        (("--num-layers", "8", "--account-for-loss-in-pipeline-split"), None),
    ],
)
def test_layers_of_even_stages_come_from_the_command_line(
    argv: tuple[str, ...], layers: tuple[int, ...] | None
) -> None:
    assert recording(rank(0, argv=argv), rank(1)).layers == layers


def test_spans_of_modules_tell_layers_of_any_stages() -> None:
    argv = ("--num-layers", "8")
    assert recording(rank(0, argv=argv, layers=3), rank(1, layers=5)).layers == (3, 5)
    # Of one stage alone they tell nothing of the other.
    assert recording(rank(0, argv=argv, layers=3), rank(1)).layers == (4, 4)
