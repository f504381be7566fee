# SPDX-License-Identifier: Apache-2.0
"""What one version of Megatron is enough for."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from launches import WHEELS, read_trace, steps, trace_files
from trainings import Trainings


@pytest.fixture(params=WHEELS[-1:])
def train(request: pytest.FixtureRequest, trainings: Callable[[str], Trainings]) -> Trainings:
    return trainings(request.param)


def test_a_launch_script_of_a_gpu_trains_on_the_cpu(train: Trainings) -> None:
    run = train.of_a_gpu.run
    assert len(run.losses) == 2
    (line,) = [line for line in run.said if line.startswith("on the CPU: ")]
    assert line.endswith("without NVTE_FLASH_ATTN")


def test_a_way_out_inside_train_still_leaves_a_trace(
    train: Trainings,
) -> None:
    # Megatron calls sys.exit inside train() when the exit interval is reached.
    run, folder = train.ended_early.run, train.ended_early.folder
    assert sorted(run.losses) == [1, 2, 3]
    assert trace_files(folder) == ["iter-0000003/rank-0.pt.trace.json.gz"]
    trace = read_trace(folder, "rank-0.pt.trace.json.gz")
    assert steps(trace) == ["ProfilerStep#3"]
    assert trace["torch_profile"]["window"] == {"first": 3, "last": 3}
    assert (
        "iterations: 3 (warm-up 1 before the window); this process runs iterations 1 to 3"
        in run.said
    )


def test_a_wandb_that_fails_ends_nothing(train: Trainings) -> None:
    run, plain = train.ended_early.run, train.unprofiled.run
    assert run.losses == {iteration: plain.losses[iteration] for iteration in (1, 2, 3)}
    assert [line for line in run.said if "without metrics" in line] == [
        "warning: training goes on without metrics in W&B: ConnectionError: W&B is down"
    ]
    (metrics,) = train.ended_early.folder.rglob("metrics.jsonl")
    iterations = [json.loads(line)["iteration"] for line in metrics.read_text().splitlines()]
    assert sorted(set(iterations)) == [1, 2, 3]
