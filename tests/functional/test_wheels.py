# SPDX-License-Identifier: Apache-2.0
"""Each Megatron wheel trains with and without profiling: same losses, and the traces asked for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launches import ROOT, WHEELS, read_trace, steps, trace_files
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trainings import Trainings

pytestmark = pytest.mark.parametrize("version", WHEELS, scope="module")


@pytest.fixture(scope="module")
def train(version: str, trainings: Callable[[str], Trainings]) -> Trainings:
    return trainings(version)


def float_losses(folder: Path) -> list[float]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [event.value for event in events.Scalars("lm loss")]


def test_without_the_flag_nothing_is_said_or_written_of_profiling(train: Trainings) -> None:
    run, folder = train.unprofiled.run, train.unprofiled.folder
    assert len(run.losses) == 8
    assert not any("trace" in line or "ranks" in line for line in run.said)
    assert not list(folder.rglob("*.json*"))


def test_the_forks_flag_block_writes_both_ranks_trace_of_iteration_3(train: Trainings) -> None:
    folder = train.forks.folder
    assert trace_files(folder) == [
        "iter-0000003/rank-0.pt.trace.json.gz",
        "iter-0000003/rank-1.pt.trace.json.gz",
    ]
    trace = read_trace(folder, "rank-1.pt.trace.json.gz")
    assert steps(trace) == ["ProfilerStep#3"]
    names = [event.get("name", "") for event in trace["traceEvents"]]
    for span in ("decoder.layers.3.mlp: MLP", "decoder.layers.3.mlp: MLP (backward)"):
        assert names.count(span) == 4, "one for each micro-batch"
    assert trace["with_stack"] == trace["profile_memory"] == trace["with_flops"] == 1
    assert "[memory]" in names


def test_the_loss_under_the_forks_flag_block_is_the_same_to_the_last_bit(train: Trainings) -> None:
    assert train.forks.run.losses == train.unprofiled.run.losses
    plain = train.unprofiled.folder / "tensorboard"
    assert float_losses(train.forks.folder) == float_losses(plain)


def test_a_trace_and_the_run_file_tell_of_rank_version_and_plan(
    train: Trainings, version: str
) -> None:
    run, folder = train.forks.run, train.forks.folder
    trace = read_trace(folder, "rank-1.pt.trace.json.gz")
    assert trace["distributedInfo"]["rank"] == 1
    ours = trace["torch_profile"]
    assert ours["window"] == {"first": 3, "last": 3}
    assert ours["coordinates"] == {"tp": 0, "pp": 0, "dp": 1, "cp": 0, "ep": 0}
    assert ours["world_size"] == 2
    assert ours["model_flops_per_iteration"] > 0

    (run_file,) = folder.rglob("run.json")
    described = json.loads(run_file.read_text())
    assert described["versions"]["megatron-core"].partition("+")[0] == version
    assert described["plan"]["windows"] == [{"first": 3, "last": 3, "warmup": 1}]
    assert [rank["coordinates"]["dp"] for rank in described["ranks"]] == [0, 1]
    assert (
        "iterations: 3 (warm-up 1 before the window); this process runs iterations 1 to 8"
        in run.said
    )


def test_absolute_iterations_are_right_after_a_resume(train: Trainings) -> None:
    run, folder = train.resumed.run, train.resumed.folder
    # Not the same digits as uninterrupted: on the CPU the data loader draws from the generator
    # that dropout draws from.
    assert sorted(run.losses) == [6, 11, 22]
    assert trace_files(folder) == ["iter-0000017-0000018/rank-0.pt.trace.json.gz"]
    trace = read_trace(folder, "rank-0.pt.trace.json.gz")
    assert steps(trace) == ["ProfilerStep#17", "ProfilerStep#18"]


def test_pipeline_and_tensor_parallel_with_ranks_by_coordinates(train: Trainings) -> None:
    folder = train.parallel.folder
    assert trace_files(folder) == [
        f"iter-000000{iteration}/rank-{rank}.pt.trace.json.gz"
        for iteration in (2, 4)
        for rank in (0, 2)
    ]
    for name, stage in (("rank-0.pt.trace.json.gz", 0), ("rank-2.pt.trace.json.gz", 1)):
        (first, _) = sorted(folder.rglob(name))
        trace = read_trace(first.parent, name)
        assert trace["torch_profile"]["coordinates"]["pp"] == stage
        assert microbatches(trace) == ONE_F_ONE_B[stage]


def test_multi_token_prediction_trains_its_layers_too(train: Trainings) -> None:
    assert len(re.findall(r"mtp_1 loss: \S+", train.parallel.run.output)) == 5


# Four micro-batches on two stages: f and b with their number, and w(armup), s(teady), c(ooldown).
ONE_F_ONE_B = ["f0w f1s b0s f2s b1s f3s b2s b3c", "f0s b0s f1s b1s f2s b2s f3s b3s"]


def microbatches(trace: dict[str, Any]) -> str:
    """The phases of a trace in short: `forward micro-batch 0 (warmup)` is f0w."""
    found = []
    for event in trace["traceEvents"]:
        match = re.fullmatch(r"(\w)\w+ micro-batch (\d+) \((\w)\w+\)", str(event.get("name")))
        if match and event.get("cat") == "user_annotation":
            found.append((float(event["ts"]), "".join(match.groups())))
    return " ".join(short for _, short in sorted(found))


# What Megatron's parser says before install(), with it, and after uninstall().
PARSE = """
import contextlib, io, json, sys
import megatron.torch_profile as ours
from megatron.training import arguments, training

def help():
    sys.argv = ["parse.py", "--help"]
    text = io.StringIO()
    # Upstream's own help dies of a bare % in 0.18 and 0.19; with ours it does not.
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit, ValueError):
        arguments.parse_args()
    return text.getvalue()

def attributes():
    sys.argv = ["parse.py"]
    return sorted(vars(arguments.parse_args()))

names = [(training, "train"), (training, "train_step"), (arguments, "_add_logging_args")]
functions = lambda: [getattr(module, name) for module, name in names]
before = functions()
seen = {"plain": help(), "plain attributes": attributes()}
ours.install()
ours.install()
seen |= {"ours": help(), "ours attributes": attributes()}
seen["wrapped"] = [a is not b for a, b in zip(before, functions())]
ours.uninstall()
seen |= {"after": help(), "restored": [a is b for a, b in zip(before, functions())]}
print(json.dumps(seen))
"""


def test_the_flags_are_in_help_and_without_ours_help_is_upstreams(
    version: str, wheel_path: Callable[[str], str]
) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{wheel_path(version)}",
        "PYTHONWARNINGS": "ignore",
        "COLUMNS": "200",
    }
    out = subprocess.run(
        [sys.executable, "-c", PARSE], env=environment, stdout=subprocess.PIPE, check=True
    ).stdout
    seen = json.loads(out.splitlines()[-1])
    assert "--torch-profile" not in seen["plain"]
    assert "--torch-profile-skip-first N" in seen["ours"]
    assert seen["ours attributes"] == seen["plain attributes"], "without the flag, none of ours"
    assert seen["after"] == seen["plain"]
    assert seen["wrapped"] == seen["restored"] == [True] * 3
