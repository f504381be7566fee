# SPDX-License-Identifier: Apache-2.0
"""What watches all iterations, on real Megatron wheels."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from launches import WHEELS
from trainings import Trainings

from megatron import torch_trace


@pytest.mark.parametrize("version", WHEELS[-1:])
def test_where_a_rank_hangs_is_named_to_the_module_and_training_goes_on(
    trainings: Callable[[str], Trainings], version: str
) -> None:
    training = trainings(version).hanging
    assert training.run.losses == trainings(version).unprofiled.run.losses
    (run,) = (path.parent for path in training.folder.rglob("run.json"))
    answer = torch_trace.hang(run)
    assert answer.culprits == (1,)
    assert "rank 0 waits for it" in answer.verdict
    record = json.loads(next(run.glob("hangs/rank-1.*.hang.json")).read_text())
    assert (record["iteration"], record["micro_batch"]) == (3, 1)
    assert record["modules"][-1] == "decoder.layers.2.mlp: MLP"
    assert record["logged_iteration"] == 2
    assert len([*run.glob("hangs/*.hang.json")]) == 2
