# SPDX-License-Identifier: Apache-2.0
"""One number for every timer: stdout, a real event file, a real W&B offline run, metrics.jsonl."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launches import WHEELS, Run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_scripts import LATE
from trainings import Training, Trainings

from megatron.torch_profile.record.compilations import COUNTS

Numbers = dict[int, dict[str, Any]]
"""Iteration -> key -> value."""


def wandb_numbers(folder: Path) -> Numbers:
    """The history of the offline run in a folder."""
    numbers: Numbers = {}
    for record in wandb_records(folder):
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(i.nested_key) or i.key: i for i in record.history.item}
            numbers.setdefault(record.history.step.num, {}).update(
                {key: json.loads(item.value_json) for key, item in items.items()}
            )
    return numbers


def wandb_records(folder: Path) -> Iterator[Any]:
    """What the transaction log of the offline run in a folder holds."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.rglob("run-*.wandb")
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        yield record


def records(log: bytes) -> Iterator[bytes]:
    """Whole records of a LevelDB log: pieces of (checksum, length, kind) in blocks of 32 KiB."""
    position, record = 7, b""  # after W&B's own header
    while position < len(log):
        if (left := 32768 - position % 32768) < 7:
            position += left
            continue
        length = int.from_bytes(log[position + 4 : position + 6], "little")
        kind = log[position + 6]
        record += log[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, last
            yield record
            record = b""


def json_numbers(folder: Path) -> Numbers:
    """What stands in the only metrics.jsonl."""
    (file,) = folder.rglob("metrics.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    numbers: Numbers = {}
    for line in lines:
        numbers.setdefault(line.pop("iteration"), {}).update(line)
    return numbers


def event_numbers(folder: Path) -> Numbers:
    """Scalars of the event file, float32 as it holds them."""
    events = EventAccumulator(str(folder))
    events.Reload()
    numbers: Numbers = {}
    for key in events.Tags()["scalars"]:
        for event in events.Scalars(key):
            numbers.setdefault(event.step, {})[key] = event.value
    return numbers


def printed_milliseconds(run: Run) -> list[dict[str, str]]:
    """The largest time of every timer in each of Megatron's blocks, as printed."""
    blocks = re.findall(r"time across ranks \(ms\):\n((?: {4}\S+ \.*: .*\n)+)", run.output)
    timer = r" {4}(\S+) \.*: \([\d.]+, ([\d.]+)\)"
    return [dict(re.findall(timer, block)) for block in blocks]


def ours(numbers: Numbers) -> Numbers:
    prefixes = ("timers/", "train/", "gpu/", "memory/", "compile/")
    kept = {
        i: {key: value for key, value in of.items() if key.startswith(prefixes)}
        for i, of in numbers.items()
    }
    return {i: of for i, of in kept.items() if of}


def as_float32(numbers: Numbers) -> Numbers:
    return {i: {k: float(np.float32(v)) for k, v in of.items()} for i, of in numbers.items()}


def timer_times(numbers: dict[str, float]) -> dict[str, str]:
    """`timers/<name>-time` as Megatron prints them."""
    times = {key: re.fullmatch(r"timers/(.*)-time", key) for key in numbers}
    return {m[1]: f"{numbers[key] * 1000.0:.2f}" for key, m in times.items() if m}


@pytest.fixture(params=WHEELS)
def resumed(request: pytest.FixtureRequest, trainings: Callable[[str], Trainings]) -> Training:
    return trainings(request.param).resumed


def test_every_sink_has_what_megatron_prints(resumed: Training) -> None:
    run, folder = resumed.run, resumed.folder
    numbers = ours(json_numbers(folder))
    # 6 is the first of this process; 11 covers 6 to 11, where Megatron would divide by 11.
    assert list(numbers) == [6, 11, 22]
    assert ours(wandb_numbers(folder)) == numbers
    assert ours(event_numbers(folder / "events")) == as_float32(numbers)
    # Before training it prints two more blocks, of its start.
    assert printed_milliseconds(run)[-3:] == [timer_times(of) for of in numbers.values()]
    for of in (numbers[6], numbers[11]):
        # One timer spans nearly all of an iteration, so a wrong divisor would show.
        assert of["timers/forward-backward-time"] * 1000.0 < of["train/step_time_ms"]
        assert of["timers/forward-backward-time"] * 1000.0 > of["train/step_time_ms"] / 2


def test_metrics_name_the_late_rank_and_count_profiled_iterations(resumed: Training) -> None:
    run, numbers = resumed.run, ours(json_numbers(resumed.folder))
    key = "timers/forward-compute-time"
    for of, iterations in zip(numbers.values(), [1, 6, 11], strict=True):
        assert of[f"{key}/slowest_rank"] == 1
        assert of[key] > LATE / iterations
        assert of[f"{key}/mean"] == pytest.approx((of[f"{key}/min"] + of[key]) / 2)
        assert of[f"{key}/imbalance"] == pytest.approx(of[key] / of[f"{key}/mean"])
        assert {name: of[f"compile/{name}"] for name in COUNTS} == dict.fromkeys(COUNTS, 0)

    assert [of["train/profiled_iterations"] for of in numbers.values()] == [0, 0, 4]
    # Another rank's line may follow on the same line of the log.
    line = r"iteration +(\d+)/.*\| tokens/s: \d+ \|( profiled iterations: \d+ \|)?"
    assert re.findall(line, run.output) == [
        ("6", ""),
        ("11", ""),
        ("22", " profiled iterations: 4 |"),
    ]
    # This machine may or may not have NVML; without, one line says so.
    told = any(key.startswith("gpu/") for key in numbers[6])
    assert sum("without GPU telemetry" in line for line in run.said) == (0 if told else 1)


def test_what_the_trace_says_is_in_every_sink(resumed: Training) -> None:
    """The last rank, which is not profiled, tells of rank 0's window when it is analysed."""
    run, folder = resumed.run, resumed.folder
    window = json_numbers(folder)[18]
    assert list(window) == ["profile/ranks", "profile/iteration_ms"], "there is no GPU"
    assert event_numbers(folder / "events")[18].items() >= as_float32({18: window})[18].items()
    (told,) = (of for of in wandb_numbers(folder).values() if "profile/iteration" in of)
    assert {key: told[key] for key in window} == window
    assert told["profile/iteration"] == 18
    assert told["profile/findings/_type"] == "table-file"
    assert told["profile/breakdown_by_rank/nrows"] == 1
    assert "iterations 17-18: no GPU work in the traces (1 rank; 1 finding)" in run.said
    (artifact,) = (r.artifact for r in wandb_records(folder) if r.artifact.type == "torch-profile")
    (entry,) = artifact.manifest.contents
    assert entry.path == "iter-0000017-0000018/rank-0.pt.trace.json.gz"


@pytest.mark.parametrize("version", WHEELS[-1:])
def test_wandb_needs_no_tensorboard(trainings: Callable[[str], Trainings], version: str) -> None:
    run, folder = trainings(version).of_a_gpu.run, trainings(version).of_a_gpu.folder
    numbers = ours(wandb_numbers(folder))
    assert list(numbers) == [1, 2]
    assert printed_milliseconds(run)[-2:] == [timer_times(of) for of in numbers.values()]
    assert not list(folder.rglob("metrics.jsonl"))
