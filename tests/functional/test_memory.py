# SPDX-License-Identifier: Apache-2.0
"""Memory snapshots and out-of-memory errors on real Megatron wheels, with a stand-in for a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from launches import WHEELS
from trainings import Trainings

from megatron import torch_trace

CATEGORIES = ["communication_buffers", "gradients", "optimizer_state", "parameters"]
"""Megatron's global memory buffer is one of communication."""


@pytest.mark.parametrize("version", WHEELS[-1:])
def test_who_owns_memory_is_known_without_any_stack_and_training_is_what_it_was(
    trainings: Callable[[str], Trainings], version: str
) -> None:
    training = trainings(version).remembering
    assert training.run.losses == trainings(version).unprofiled.run.losses
    assert "history: ['all', None]" in training.run.output
    (path,) = training.folder.rglob("iter-*/artifacts/*.memory_snapshot.pickle")
    assert path.relative_to(path.parents[2]).as_posix() == (
        "iter-0000004-0000005/artifacts/rank-0.memory_snapshot.pickle"
    )
    (answer,) = torch_trace.memory(path)
    held = {category.value: size for category, size in answer.categories.items() if size}
    assert sorted(held) == CATEGORIES
    # Adam in fp32: a gradient and two moments for each parameter.
    assert held["gradients"] == pytest.approx(held["parameters"], rel=0.1)
    assert held["optimizer_state"] == pytest.approx(2 * held["parameters"], rel=0.1)


@pytest.mark.parametrize("version", WHEELS[-1:])
def test_an_out_of_memory_error_is_told_with_its_module_and_training_goes_on(
    trainings: Callable[[str], Trainings], version: str
) -> None:
    training = trainings(version).remembering
    assert (
        "rank 0 asked for 1.07 GB (iteration 7, forward micro-batch 1, decoder.layers.2.mlp: MLP)"
        in training.run.output
    )
    (path,) = training.folder.rglob("out-of-memory/*.live_bytes.json")
    facts = json.loads(path.read_text())
    assert (facts["phase"], facts["module"]) == (
        "forward micro-batch 1",
        "decoder.layers.2.mlp: MLP",
    )
    assert sorted(facts["categories"]) == CATEGORIES
    assert facts["stack"][0].endswith(" failing")


@pytest.mark.parametrize("version", WHEELS[-1:])
def test_a_rank_without_a_gpu_says_that_nothing_is_recorded(
    trainings: Callable[[str], Trainings], version: str
) -> None:
    output = trainings(version).remembering.run.output
    for flag in ("memory-timeline", "on-oom"):
        line = f"--torch-profile-{flag} does nothing on rank 1: it trains without a GPU"
        assert output.count(line) == 1
