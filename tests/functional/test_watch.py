# SPDX-License-Identifier: Apache-2.0
"""What watches all iterations, on real Megatron wheels."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from launches import WHEELS, trace_files
from test_metrics import event_numbers, wandb_numbers
from trainings import Trainings

from megatron import torch_trace
from megatron.torch_profile.publish.sinks import WINDOW_AXIS


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
    assert [one["iteration"] for one in record["iterations"]] == [1, 2]
    assert len([*run.glob("hangs/*.hang.json")]) == 2


@pytest.mark.parametrize("version", WHEELS[-1:])
def test_the_monitor_names_a_slow_rank_within_three_iterations_and_changes_no_loss(
    trainings: Callable[[str], Trainings], version: str
) -> None:
    training = trainings(version).slow
    run, folder = training.run, training.folder
    losses = trainings(version).unprofiled.run.losses
    assert {i: run.losses[i] for i in range(1, 6)} == {i: losses[i] for i in range(1, 6)}
    slow = re.findall(
        r"rank (\d) \(.*\) is slow since iteration (\d+): .* longer in (\w+) than its peers, "
        r"in an iteration of .* \(seen in iteration (\d+)\)",
        run.output,
    )
    assert slow == [("1", "31", "forward", "33")]

    (file,) = folder.rglob("metrics.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    numbers = {int(of["monitor/iteration"]): of for of in lines if "monitor/iteration" in of}
    assert sorted(numbers) == [10, 20, 30, 40, 50, 60, 70]
    of = numbers[40]
    assert of["monitor/slowest_rank"] == 1
    parts = {k: v for k, v in of.items() if k.startswith("monitor/slowest_by_ms/")}
    assert max(parts, key=parts.__getitem__) == "monitor/slowest_by_ms/forward"
    assert of["monitor/own_ms"] + of["monitor/waiting_ms"] > 0.5 * of["monitor/iteration_ms"]
    # The first three, the warm-up, the window, and the iteration in which the profiler stops.
    assert numbers[10]["monitor/left_out_iterations"] == 6
    # The rank with W&B reads them from the store.
    for elsewhere in (wandb_numbers(folder), event_numbers(folder / "events")):
        told = [of["monitor/iteration"] for of in elsewhere.values() if "monitor/iteration" in of]
        assert {*told} & {10.0, 20.0}


@pytest.mark.parametrize("version", WHEELS[-1:])
def test_a_slow_iteration_records_the_slowest_rank_and_every_sink_is_told_of_the_window(
    trainings: Callable[[str], Trainings], version: str
) -> None:
    run, folder = trainings(version).slow.run, trainings(version).slow.folder
    (file,) = folder.rglob("requests/slow-*.answer.json")
    answer = json.loads(file.read_text())
    assert (answer["state"], answer["recorded_ranks"]) == ("done", [1])
    last = answer["last"]
    assert last > 31
    trace = f"{answer['folder']}/rank-1.pt.trace.json.gz"
    assert trace_files(folder / "traces") == ["iter-0000005/rank-0.pt.trace.json.gz", trace]
    assert event_numbers(folder / "events")[last].get("profile/ranks") == 1.0, run.output
    windows = [o["profile/iteration"] for o in wandb_numbers(folder).values() if WINDOW_AXIS in o]
    assert windows == [5, last]
    text = next(folder.rglob("metrics.jsonl")).read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    profiled = {o["iteration"] for o in lines if o.get("train/profiled_iterations")}
    assert sorted(profiled) == [4, 5, 6, last - 1, last, last + 1]
