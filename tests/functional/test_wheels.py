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
from launches import MODEL, ROOT, WHEELS, Launch, Run, read_trace, steps, trace_files
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

# Two data-parallel ranks with four micro-batches each.
TRAIN = f"{MODEL} --global-batch-size 8 --train-iters 8"

FORK_BLOCK = (
    "--torch-profile --torch-profile-wait 0 --torch-profile-ranks 0 1 --torch-profile-warmup 1 "
    "--torch-profile-active 1 --torch-profile-repeat 1 --torch-profile-skip-first 1 "
    "--torch-profile-with-flops --torch-profile-profile-memory --torch-profile-with-stack "
    "--torch-profile-with-modules"
)

pytestmark = pytest.mark.parametrize("version", WHEELS, scope="module")


@pytest.fixture(scope="module")
def unprofiled(version: str, launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run without any flag of ours, that leaves a checkpoint of iteration 5."""
    folder = tmp_path_factory.mktemp(f"unprofiled-{version}")
    run = launch(
        f"{TRAIN} --save {folder}/checkpoints --save-interval 5 --ckpt-format torch "
        f"--tensorboard-dir {folder}/tensorboard",
        version=version,
        processes=2,
    )
    assert run.status == 0, run.output
    run.folder = folder  # type: ignore[attr-defined]
    return run


def float_losses(folder: Path) -> list[float]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [event.value for event in events.Scalars("lm loss")]


def test_without_the_flag_nothing_is_said_or_written_of_profiling(
    unprofiled: Run, version: str
) -> None:
    assert len(unprofiled.losses) == 8
    assert not any("trace" in line or "ranks" in line for line in unprofiled.said)
    folder: Path = unprofiled.folder  # type: ignore[attr-defined]
    assert not list(folder.rglob("*.json*"))


def test_the_default_run_writes_rank_0s_trace_of_iteration_3(
    version: str, launch: Launch, unprofiled: Run, tmp_path: Path
) -> None:
    run = launch(
        f"{TRAIN} --torch-profile --tensorboard-dir {tmp_path}", version=version, processes=2
    )
    assert run.status == 0, run.output
    assert run.losses == unprofiled.losses
    folder: Path = unprofiled.folder  # type: ignore[attr-defined]
    assert float_losses(tmp_path) == float_losses(folder / "tensorboard"), "to the last bit"

    assert trace_files(tmp_path) == ["iter-0000003/rank-0.pt.trace.json.gz"]
    trace = read_trace(tmp_path, "rank-0.pt.trace.json.gz")
    assert steps(trace) == ["ProfilerStep#3"]
    assert trace["distributedInfo"]["rank"] == 0
    ours = trace["torch_profile"]
    assert ours["window"] == {"first": 3, "last": 3}
    assert ours["coordinates"] == {"tp": 0, "pp": 0, "dp": 0, "cp": 0, "ep": 0}
    assert ours["world_size"] == 2
    assert ours["model_flops_per_iteration"] > 0

    (run_file,) = tmp_path.rglob("run.json")
    described = json.loads(run_file.read_text())
    assert described["versions"]["megatron-core"].partition("+")[0] == version
    assert described["plan"]["windows"] == [{"first": 3, "last": 3, "warmup": 1}]
    assert [rank["coordinates"]["dp"] for rank in described["ranks"]] == [0, 1]
    assert "iterations: 3 (warm-up 1 before each); this process runs iterations 1 to 8" in run.said


def test_the_forks_flag_block_works_unchanged(
    version: str, launch: Launch, unprofiled: Run, tmp_path: Path
) -> None:
    run = launch(f"{TRAIN} {FORK_BLOCK} --tensorboard-dir {tmp_path}", version=version, processes=2)
    assert run.status == 0, run.output
    assert run.losses == unprofiled.losses
    assert trace_files(tmp_path) == [
        "iter-0000003/rank-0.pt.trace.json.gz",
        "iter-0000003/rank-1.pt.trace.json.gz",
    ]
    trace = read_trace(tmp_path, "rank-1.pt.trace.json.gz")
    assert steps(trace) == ["ProfilerStep#3"]
    names = [event.get("name", "") for event in trace["traceEvents"]]
    for span in ("decoder.layers.3.mlp: MLP", "decoder.layers.3.mlp: MLP (backward)"):
        assert names.count(span) == 4, "one for each micro-batch"
    assert trace["with_stack"] == trace["profile_memory"] == trace["with_flops"] == 1
    assert "[memory]" in names


def test_absolute_iterations_are_right_after_a_resume_and_cycles_count_from_it(
    version: str, launch: Launch, unprofiled: Run, tmp_path: Path
) -> None:
    folder: Path = unprofiled.folder  # type: ignore[attr-defined]
    tracker = folder / "checkpoints" / "latest_checkpointed_iteration.txt"
    tracker.write_text("5")
    resumed = f"{TRAIN} --load {folder}/checkpoints --ckpt-format torch --torch-profile"
    absolute = launch(
        f"{resumed} --torch-profile-iterations 7-8 --torch-profile-dir {tmp_path}/absolute",
        version=version,
        processes=2,
    )
    assert absolute.status == 0, absolute.output
    # Not the same digits as uninterrupted: on the CPU the data loader draws from the generator
    # that dropout draws from.
    assert sorted(absolute.losses) == [6, 7, 8]
    assert trace_files(tmp_path / "absolute") == ["iter-0000007-0000008/rank-0.pt.trace.json.gz"]
    trace = read_trace(tmp_path / "absolute", "rank-0.pt.trace.json.gz")
    assert steps(trace) == ["ProfilerStep#7", "ProfilerStep#8"]


def test_pipeline_and_tensor_parallel_with_ranks_by_coordinates(
    version: str, launch: Launch, tmp_path: Path
) -> None:
    run = launch(
        f"{MODEL} --global-batch-size 4 --train-iters 5 --tensor-model-parallel-size 2 "
        f"--pipeline-model-parallel-size 2 --torch-profile --torch-profile-ranks tp=0,dp=0 "
        f"--torch-profile-repeat 2 --torch-profile-skip-first 0 --torch-profile-dir {tmp_path} "
        "--torch-profile-spans phases",
        version=version,
        processes=4,
    )
    assert run.status == 0, run.output
    assert trace_files(tmp_path) == [
        f"iter-000000{iteration}/rank-{rank}.pt.trace.json.gz"
        for iteration in (2, 4)
        for rank in (0, 2)
    ]
    for name, stage in (("rank-0.pt.trace.json.gz", 0), ("rank-2.pt.trace.json.gz", 1)):
        (first, _) = sorted(tmp_path.rglob(name))
        trace = read_trace(first.parent, name)
        assert trace["torch_profile"]["coordinates"]["pp"] == stage
        assert microbatches(trace) == ONE_F_ONE_B[stage]


def test_multi_token_prediction_trains_its_layers_too(version: str, launch: Launch) -> None:
    run = launch(
        f"{MODEL} --global-batch-size 4 --train-iters 2 --pipeline-model-parallel-size 2 "
        "--mtp-num-layers 1 --position-embedding-type rope",
        version=version,
        processes=2,
    )
    assert run.status == 0, run.output
    assert len(re.findall(r"mtp_1 loss: \S+", run.output)) == 2


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
