# SPDX-License-Identifier: Apache-2.0
"""One number for every timer: stdout, a real event file, a real W&B offline run, metrics.jsonl."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launches import MODEL, WHEELS, Launch, Run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from megatron.torch_profile.record.compilations import COUNTS

# Log intervals end in iterations 5 and 10; the last two iterations are never logged. Of a flag that
# is given twice the later one counts.
TRAIN = (
    f"{MODEL.replace('--log-interval 1 ', '')} --log-interval 5 --global-batch-size 8 "
    "--train-iters 12 --timing-log-level 1 --logging-level 20"
)
WANDB = "--log-timers-to-wandb --wandb-project project --wandb-exp-name name --wandb-save-dir"

Numbers = dict[int, dict[str, Any]]
"""Iteration -> key -> value."""


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")


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


def grad_norms(run: Run) -> dict[int, str]:
    """Iteration -> the digits of its gradient norm."""
    return {iteration: digits.split()[1] for iteration, digits in run.losses.items()}


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


@pytest.fixture(scope="module")
def plain(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Without a flag of ours; leaves a checkpoint of iteration 8."""
    folder = tmp_path_factory.mktemp("plain")
    run = launch(
        f"{TRAIN} --log-interval 1 --save {folder}/checkpoints --save-interval 8 "
        "--ckpt-format torch",
        processes=2,
    )
    assert run.status == 0, run.output
    run.folder = folder  # type: ignore[attr-defined]
    return run


@pytest.mark.parametrize("version", WHEELS)
def test_every_sink_has_what_megatron_prints_and_the_loss_is_the_same(
    launch: Launch, plain: Run, tmp_path: Path, version: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SLOW_RANK_1)
    run = launch(
        f"{TRAIN} {WANDB} {tmp_path}/wandb --log-timers-to-tensorboard --tensorboard-dir "
        f"{tmp_path}/events --timing-log-level 2 --torch-profile --torch-profile-iterations 8 "
        f"--torch-profile-ranks 0 --torch-profile-dir {tmp_path}/traces --log-gpu-stats-interval 1 "
        "--torch-profile-summary always --torch-profile-wandb-artifacts",
        version=version,
        processes=2,
        script=str(script),
    )
    assert run.status == 0, run.output
    if version == WHEELS[-1]:  # as `plain`; losses are printed as means of the interval
        assert grad_norms(run) == {i: grad_norms(plain)[i] for i in (1, 5, 10)}

    numbers = ours(json_numbers(tmp_path))
    assert list(numbers) == [1, 5, 10]
    assert ours(wandb_numbers(tmp_path)) == numbers
    assert ours(event_numbers(tmp_path / "events")) == as_float32(numbers)
    # Before training it prints two more blocks, of its start.
    assert printed_milliseconds(run)[-3:] == [timer_times(of) for of in numbers.values()]
    assert all("forward-backward" in timer_times(of) for of in numbers.values())

    key = "timers/forward-compute-time"
    for of, iterations in zip(numbers.values(), [1, 5, 5], strict=True):
        assert of[f"{key}/slowest_rank"] == 1
        assert of[key] > LATE / iterations
        assert of[f"{key}/mean"] == pytest.approx((of[f"{key}/min"] + of[key]) / 2)
        assert of[f"{key}/imbalance"] == pytest.approx(of[key] / of[f"{key}/mean"])
        assert {name: of[f"compile/{name}"] for name in COUNTS} == dict.fromkeys(COUNTS, 0)

    assert [of["train/profiled_iterations"] for of in numbers.values()] == [0, 0, 3]
    # Another rank's line may follow on the same line of the log.
    line = r"iteration +(\d+)/.*\| tokens/s: \d+ \|( profiled iterations: \d+ \|)?"
    assert re.findall(line, run.output) == [
        ("1", ""),
        ("5", ""),
        ("10", " profiled iterations: 3 |"),
    ]
    # This machine may or may not have NVML; without, one line says so.
    told = any(key.startswith("gpu/") for key in numbers[5])
    assert sum("without GPU telemetry" in line for line in run.said) == (0 if told else 1)
    what_the_trace_says_is_in_every_sink(run, tmp_path)


def what_the_trace_says_is_in_every_sink(run: Run, folder: Path) -> None:
    """The last rank, which is not profiled, tells of rank 0's window when it is analysed."""
    window = json_numbers(folder)[8]
    assert list(window) == ["profile/ranks", "profile/iteration_ms"], "there is no GPU"
    assert event_numbers(folder / "events")[8].items() >= as_float32({8: window})[8].items()
    (told,) = (of for of in wandb_numbers(folder).values() if "profile/iteration" in of)
    assert {key: told[key] for key in window} == window
    assert told["profile/iteration"] == 8
    assert told["profile/findings/_type"] == "table-file"
    assert told["profile/breakdown_by_rank/nrows"] == 1
    assert "iterations 8: no GPU work in the traces (1 rank; 1 finding)" in run.said
    (artifact,) = (r.artifact for r in wandb_records(folder) if r.artifact.type == "torch-profile")
    (entry,) = artifact.manifest.contents
    assert entry.path == "iter-0000008/rank-0.pt.trace.json.gz"


def test_wandb_needs_no_tensorboard_and_a_resume_counts_the_iterations_it_ran(
    launch: Launch, plain: Run, tmp_path: Path
) -> None:
    folder: Path = plain.folder  # type: ignore[attr-defined]
    (folder / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("8")
    run = launch(
        f"{TRAIN} {WANDB} {tmp_path}/wandb --load {folder}/checkpoints --ckpt-format torch "
        "--log-interval 7 --train-iters 16 --override-opt_param-scheduler",
        processes=2,
    )
    assert run.status == 0, run.output
    numbers = ours(wandb_numbers(tmp_path))
    # 9 is the first of this process; 14 covers 9 to 14, where Megatron would divide by 7.
    assert list(numbers) == [9, 14]
    assert printed_milliseconds(run)[-2:] == [timer_times(of) for of in numbers.values()]
    for of in numbers.values():
        # One timer spans nearly all of an iteration, so a wrong divisor would show.
        assert of["timers/forward-backward-time"] * 1000.0 < of["train/step_time_ms"]
        assert of["timers/forward-backward-time"] * 1000.0 > of["train/step_time_ms"] / 2
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_a_wandb_that_fails_ends_nothing(launch: Launch, plain: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BROKEN_WANDB)
    run = launch(
        f"{TRAIN} {WANDB} {tmp_path}/wandb --torch-profile --torch-profile-dir {tmp_path}/traces "
        "--log-interval 1",
        processes=2,
        script=str(script),
    )
    assert run.status == 0, run.output
    assert run.losses == plain.losses
    assert [line for line in run.said if "without metrics" in line] == [
        "warning: training goes on without metrics in W&B: ConnectionError: W&B is down"
    ]
    assert list(json_numbers(tmp_path)) == list(range(1, 13))


LATE = 1.0
"""Seconds that rank 1 is late, once in each interval: in iterations 1 and 6, of 4 micro-batches."""

SLOW_RANK_1 = f"""
import itertools, os, runpy, sys, time
from megatron.core.models.gpt import GPTModel

forward, calls = GPTModel.forward, itertools.count()

def slow(self, *args, **kwargs):
    if os.environ["RANK"] == "1" and next(calls) in (0, 20):
        time.sleep({LATE})
    return forward(self, *args, **kwargs)

GPTModel.forward = slow
sys.argv[0] = "pretrain_gpt.py"
runpy.run_path("pretrain_gpt.py", run_name="__main__")
"""

# Megatron's own calls nobody could save, so only ours fail.
BROKEN_WANDB = """
import runpy, sys
from wandb.sdk import wandb_run

log = wandb_run.Run.log

def broken(self, data, *args, **kwargs):
    if "train/step_time_ms" in data:
        raise ConnectionError("W&B is down")
    return log(self, data, *args, **kwargs)

wandb_run.Run.log = broken
sys.argv[0] = "pretrain_gpt.py"
runpy.run_path("pretrain_gpt.py", run_name="__main__")
"""
