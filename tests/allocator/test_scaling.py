# SPDX-License-Identifier: Apache-2.0
"""`torch-trace memory --fit`: what of the backward pass grows with the micro-batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from fitted_runs import BACKWARD, LOSS, MODEL, fit, run_of
from snapshot_builder import MIB, SnapshotBuilder

LINEAR = "core/tensor_parallel/layers.py"
WEIGHTS = (f"{LINEAR}:725 backward",)
INPUTS = (f"{LINEAR}:626 backward",)


def needed(
    folder: Path,
    *held: tuple[int, Sequence[str]],
    weights: Sequence[int] = (),
    owners: Sequence[tuple[int, str, str]] = (),
) -> dict[int, tuple[int, int]]:
    """Peak and error in MiB by micro-batch, of a rank with 100 MiB of state.

    Args:
        folder: of the run.
        held: MiB and stack of what is in use at the peak beside it, and freed.
        weights: sizes of the weight matrices in MiB.
        owners: MiB, category and name of what was in use before the history.
    """
    built = SnapshotBuilder()
    built.alloc(100 * MIB, *MODEL)
    ranges = []
    for size, category, name in owners:
        address = built.alloc(size * MIB)
        ranges.append(
            {
                "device": 0,
                "address": address,
                "bytes": size * MIB,
                "category": category,
                "name": name,
            }
        )
    for address in [built.alloc(size * MIB, *stack) for size, stack in held]:
        built.free(address, *BACKWARD)
    run = run_of(folder / "run", built)
    (snapshot,) = run.rglob("*.memory_snapshot.pickle")
    document = {"ranges": ranges, "weight_bytes": [one * MIB for one in weights]}
    snapshot.with_name("rank-0.memory_owners.json").write_text(json.dumps(document))
    return {
        one["micro_batch"]: (one["peak_bytes"] // MIB, one["error"] // MIB)
        for one in fit(run, "--gpu-memory", 80)["ranks"][0]["needs"][:2]
    }


def test_the_gradient_of_a_weight_does_not_grow_with_the_micro_batch(tmp_path: Path) -> None:
    held = ((10, LOSS), (7, WEIGHTS), (5, INPUTS))
    assert needed(tmp_path, *held, weights=[7]) == {1: (122, 0), 2: (137, 0)}


def test_without_the_sizes_of_weights_everything_that_passes_grows(tmp_path: Path) -> None:
    assert needed(tmp_path, (10, LOSS), (7, WEIGHTS)) == {1: (117, 0), 2: (134, 0)}


def test_what_is_as_large_as_an_activation_too_may_grow_and_the_error_says_so(
    tmp_path: Path,
) -> None:
    held = ((7, LOSS), (7, WEIGHTS))
    assert needed(tmp_path, *held, weights=[7]) == {1: (114, 0), 2: (128, 7)}


def test_a_line_that_allocates_weights_of_three_sizes_allocates_nothing_else(
    tmp_path: Path,
) -> None:
    """Where the sequence is as long as the hidden size, all sizes are those of activations, too."""
    activations = tuple((size, LOSS) for size in (3, 5, 7))
    gradients = tuple((size, WEIGHTS) for size in (3, 5, 7))
    inputs = tuple((size, INPUTS) for size in (3, 7))
    found = needed(tmp_path, *activations, *gradients, *inputs, weights=[3, 5, 7])
    assert found == {1: (140, 0), 2: (165, 10)}


def test_what_autograds_own_thread_holds_for_a_moment_grows(tmp_path: Path) -> None:
    assert needed(tmp_path, (10, LOSS), (5, ())) == {1: (115, 0), 2: (130, 0)}


def test_without_any_stack_nothing_says_what_grows(tmp_path: Path) -> None:
    assert needed(tmp_path, (10, ()), (5, ()))[2][0] == 115


@pytest.mark.parametrize(
    ("name", "second"),
    [("Megatron's global memory buffer", (120, 0)), ("what FSDP gathers into", (115, 5))],
)
def test_megatrons_global_buffer_is_as_large_as_a_micro_batch(
    tmp_path: Path, name: str, second: tuple[int, int]
) -> None:
    owners = [(5, "communication_buffers", name)]
    assert needed(tmp_path, (5, LOSS), owners=owners) == {1: (110, 0), 2: second}
