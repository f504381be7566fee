# SPDX-License-Identifier: Apache-2.0
"""The plan of a launch before anything is queued: no GPU, no torch, no Megatron, no torchrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from megatron.torch_profile.hooks import preflight
from megatron.torch_trace.errors import UsageError

MODEL = (
    "pretrain_gpt.py --num-layers 24 --tensor-model-parallel-size 2 --swiglu "
    "--pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 512 "
    "--train-iters 100 --torch-profile"
)


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def shown(line: str, said: list[str], world_size: int | None = None) -> list[str]:
    preflight.show(line.split(), world_size)
    (text,) = said
    return text.splitlines()


def test_ranks_iterations_folder_and_size_are_those_of_the_launch(
    said: list[str], tmp_path: Path
) -> None:
    line = f"{MODEL} --torch-profile-ranks tp=0,dp=0 --torch-profile-dir {tmp_path}"
    assert shown(line, said, 64) == [
        "ranks: 0, 16, 32, 48 (world size 64 = tp 2 x cp 1 x pp 4 x dp 8)",
        "iterations: 3 (warm-up 1 before the window); this process runs iterations 1 to 100",
        "recording: cpu and cuda",
        "each trace: about 96 MB raw (a guess, from layers and micro-batches), 480 MB of host "
        "memory until it is written",
        f"traces: {tmp_path}/YYYYMMDD-HHMMSS",
        "in all: 4 traces, about 384 MB raw",
        "nothing was started, and Megatron's own flags were not checked",
    ]
    assert list(tmp_path.iterdir()) == []


def test_without_a_number_of_ranks_the_fewest_are_taken_and_said(said: list[str]) -> None:
    line = f"{MODEL} --num-experts 8 --expert-model-parallel-size 8"
    lines = shown(line, said)
    assert lines[0] == "ranks: 0 (world size 64 = tp 2 x cp 1 x pp 4 x dp 8, ep 8)"
    assert "number of ranks: 64, the fewest that the flags allow; --plan N plans for N" in lines


def test_the_environment_says_how_many_ranks(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    lines = shown(f"{MODEL} --torch-profile-ranks per-node", said)
    assert lines[0].startswith("ranks: 0, 4, 8, 12 (world size 16 ")
    assert "nodes: 4 ranks on each" in lines


def test_experts_are_where_megatron_puts_them(said: list[str]) -> None:
    line = (
        "--tensor-model-parallel-size 1 --expert-model-parallel-size 4 --train-iters 9 "
        "--torch-profile --torch-profile-ranks ep=1"
    )
    assert shown(line, said, 8)[0].startswith("ranks: 1, 5 (")


def test_samples_are_iterations_too(said: list[str]) -> None:
    line = MODEL.replace("--train-iters 100", "--train-samples 5120")
    assert "this process runs iterations 1 to 10" in shown(line, said, 64)[1]


@pytest.mark.parametrize(
    ("flags", "iterations"),
    [("--rampup-batch-size 4 2 16", 6), ("--step-batch-size-schedule 0:4,160:8", 7)],
)
def test_a_batch_that_grows_has_its_iterations_counted(
    flags: str, iterations: int, said: list[str]
) -> None:
    line = (
        "pretrain_gpt.py --num-layers 2 --seq-length 10 --global-batch-size 8 --train-samples 40 "
        f"--torch-profile {flags}"
    )
    assert f"this process runs iterations 1 to {iterations}" in shown(line, said, 1)[1]


@pytest.mark.parametrize(
    ("line", "world_size", "sentence"),
    [
        (
            f"{MODEL} --torch-profile-ranks 64",
            64,
            "--torch-profile-ranks 64: ranks must be 0 to 63 (world size 64 = tp 2 x cp 1 x pp 4 x "
            "dp 8).",
        ),
        (
            f"{MODEL} --torch-profile-iterations 101",
            64,
            "--torch-profile-iterations 101: this process runs iterations 1 to 100 "
            "(--train-iters 100); choose among these.",
        ),
        (
            f"{MODEL} --torch-profile-rank 1",
            64,
            "unknown flag --torch-profile-rank: did you mean --torch-profile-ranks?",
        ),
        (
            MODEL,
            12,
            "--plan 12: the number of ranks must be a multiple of 8, which is what the parallel "
            "sizes among the flags need.",
        ),
        (
            MODEL.replace("--train-iters 100", ""),
            64,
            "--plan: neither --train-iters nor --train-samples is among the flags, so the "
            "iterations are not known; add the one that the launch has.",
        ),
        (
            MODEL.replace("--torch-profile", ""),
            64,
            "--plan: there is no --torch-profile among the flags, so nothing is recorded.",
        ),
        (
            f"{MODEL} --torch-profile-dir /dev/null/traces",
            64,
            "--torch-profile-dir /dev/null/traces: rank 0 cannot write there (Not a directory); "
            "name a folder that every profiled rank can write to.",
        ),
    ],
    ids=["rank", "iteration", "flag", "ranks", "iterations", "switch", "folder"],
)
def test_what_would_end_the_launch_is_the_same_sentence(
    line: str, world_size: int, sentence: str
) -> None:
    with pytest.raises(UsageError) as refused:
        preflight.show(line.split(), world_size)
    assert str(refused.value) == sentence


COMMAND = [sys.executable, "-m", "megatron.torch_profile"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True)


def test_the_command_needs_no_torch_and_ends_with_2_for_a_mistake() -> None:
    code = "import sys; from megatron.torch_profile.__main__ import main; main(sys.argv[1:]); "
    code += "assert 'torch' not in sys.modules"
    ended = subprocess.run([sys.executable, "-c", code, "--plan", "64", *MODEL.split()[1:]])
    assert ended.returncode == 0
    wrong = run("--plan", "12", *MODEL.split()[1:])
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("torch-profile: error: --plan 12: ")
    assert run("--plan", "8", "missing.py").stderr == (
        "torch-profile: error: missing.py: no such script.\n"
    )


@pytest.mark.parametrize("words", [[], ["pretrain_gpt.py", "--num-layers", "2"]], ids=str)
def test_the_help_of_our_flags_alone(words: list[str]) -> None:
    ended = run(*words, "--torch-profile-help")
    assert ended.returncode == 0, ended.stderr
    assert "--torch-profile-ranks R [R ...]" in ended.stdout
    assert "--num-layers" not in ended.stdout
    assert ended.stdout.count("\n") < 200


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--num-layers two", "--num-layers: invalid int value: 'two'"),
        ("--rampup-batch-size 4 2", "--rampup-batch-size: expected 3 arguments"),
    ],
)
def test_a_value_that_megatron_refuses_is_one_sentence(flags: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        preflight.show(f"pretrain_gpt.py --train-iters 9 --torch-profile {flags}".split())
    assert str(refused.value) == f"--plan: {sentence}; Megatron would refuse it."
