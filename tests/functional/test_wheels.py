# SPDX-License-Identifier: Apache-2.0
"""Each Megatron wheel trains with and without profiling: same losses, and the traces asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import MODEL, ROOT, WHEELS, Launch, Run, read_trace, steps, trace_files
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
    assert described["versions"]["megatron-core"] == version
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
    assert names.count("decoder.layers.3.mlp: MLP") == 4, "a span for each micro-batch"
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
        f"--torch-profile-repeat 2 --torch-profile-skip-first 0 --torch-profile-dir {tmp_path}",
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
        coordinates = read_trace(first.parent, name)["torch_profile"]["coordinates"]
        assert coordinates["pp"] == stage


def test_the_flags_are_in_help_and_without_the_launcher_help_is_upstreams(
    version: str, wheel_path: Callable[[str], str], tmp_path: Path
) -> None:
    script = tmp_path / "parse.py"
    script.write_text(
        "from megatron.training.arguments import parse_args\nprint(sorted(vars(parse_args())))\n"
    )

    def out(*command: str) -> str:
        return subprocess.run(
            [sys.executable, *command],
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}:{wheel_path(version)}",
                "PYTHONWARNINGS": "ignore",
                "COLUMNS": "200",
            },
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout

    launcher = ("-m", "megatron.torch_profile", str(script))
    plain, ours = out(str(script), "--help"), out(*launcher, "--help")
    assert "--torch-profile" not in plain
    assert "--torch-profile-skip-first N" in ours
    assert out(str(script)) == out(*launcher), "without the flag, the same attributes"
    uninstalled = tmp_path / "uninstalled" / "parse.py"  # help begins with the script's name
    uninstalled.parent.mkdir()
    uninstalled.write_text(
        "import megatron.torch_profile as p\np.install()\np.install()\n"
        "import megatron.training.training as t, megatron.training.arguments as a\n"
        "assert type(t.train).__name__ == 'FunctionWrapper'\n"
        "p.uninstall()\n"
        "assert {type(f).__name__ for f in (t.train, t.train_step, a._add_logging_args)}"
        " == {'function'}\n" + script.read_text()
    )
    assert out(str(uninstalled), "--help") == plain
