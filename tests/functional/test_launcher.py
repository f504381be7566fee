# SPDX-License-Identifier: Apache-2.0
"""The launcher, and mistakes that show only on a real run: one sentence, status 2, no hang."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launches import MODEL, ROOT, WHEELS, Launch, trace_files

TRAIN = f"{MODEL} --global-batch-size 2 --train-iters 4"


def python(
    *command: str, path: str = str(ROOT), cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    return subprocess.run(
        [sys.executable, *command], env=environment, cwd=cwd, capture_output=True, text=True
    )


def test_it_runs_any_script_as_python_would(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 7\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, beside\n"
        "print(__name__, sys.argv, beside.value, 'torch' in sys.modules)\n"
        "sys.exit(5)\n"
    )
    ended = python("-m", "megatron.torch_profile", str(script), "--flag", "--cpu")
    assert ended.stdout == f"__main__ ['{script}', '--flag', '--cpu'] 7 False\n"
    assert ended.returncode == 5
    assert ended.stderr == ""


@pytest.mark.parametrize(
    "words", [["--local-rank=0"], ["--local_rank=0"], ["--local_rank", "0"]], ids=" ".join
)
def test_what_a_launcher_puts_before_the_script_is_the_scripts(
    words: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")
    ended = python("-m", "megatron.torch_profile", *words, str(script), "--flag")
    assert ended.stdout == f"{[*words, '--flag']}\n", ended.stderr


def test_it_runs_a_module(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    ended = python("-m", "megatron.torch_profile", "-m", "trainer", "x", path=f"{ROOT}:{tmp_path}")
    assert ended.stdout == "__main__ ['x']\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "no script is given; usage: python -m megatron.torch_profile"),
        (["missing.py"], "missing.py: no such script"),
        (["--torch-profile", "x.py"], "--torch-profile: no such script; its flags come"),
    ],
)
def test_a_wrong_call_is_one_sentence(arguments: list[str], sentence: str) -> None:
    ended = python("-m", "megatron.torch_profile", *arguments)
    assert ended.returncode == 2
    assert sentence in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_megatron_that_would_hide_this_package_is_named(tmp_path: Path) -> None:
    package = tmp_path / "old" / "megatron"
    (package / "core").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "core" / "package_info.py").write_text("MAJOR = 0\nMINOR = 5\nPATCH = 0\n")
    script = tmp_path / "old" / "pretrain_gpt.py"
    script.write_text("import megatron.training\n")
    ended = python("-m", "megatron.torch_profile", str(script))
    assert ended.returncode == 2
    assert ended.stderr == (
        f"torch-profile: error: {package} is an old Megatron (core 0.5.0, whose __init__.py hides "
        "this package); take it off PYTHONPATH and use core 0.6 or newer.\n"
    )


def test_what_needs_another_script_is_one_sentence(launch: Launch) -> None:
    run = launch(f"{TRAIN} --sft")
    assert run.status != 0
    assert run.errors == [
        "--sft: this pretrain_gpt.py cannot do that; start the one of Megatron-LM with "
        "python -m megatron.torch_profile in front of it."
    ]


@pytest.fixture(scope="module")
def checkout(wheel_path: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Megatron checkout: a megatron/ tree, and beside it a script that knows nothing of us."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(Path(wheel_path(WHEELS[0])) / "megatron", folder / "megatron")
    head, _, _ = (ROOT / "pretrain_gpt.py").read_text().partition('if __name__ == "__main__":')
    (folder / "pretrain_gpt.py").write_text(f"{head}\nmain()\n")
    return folder


def test_a_checkouts_script_that_knows_nothing_of_us_is_profiled_by_the_launcher(
    launch: Launch, checkout: Path, tmp_path: Path
) -> None:
    run = launch(
        f"--cpu {checkout}/pretrain_gpt.py {TRAIN} --torch-profile --torch-profile-dir {tmp_path}",
        path=f"{checkout}:{ROOT}",
        script="-m megatron.torch_profile",
        cwd=tmp_path,
        cold=True,
    )
    assert run.status == 0, run.output
    assert "--cpu: training on the CPU over gloo" in run.said
    assert trace_files(tmp_path) == ["iter-0000003/rank-0.pt.trace.json.gz"]


def test_our_script_trains_with_a_checkout_behind_ours_on_the_path(
    launch: Launch, checkout: Path, tmp_path: Path
) -> None:
    run = launch(
        f"{TRAIN} --torch-profile --torch-profile-dir {tmp_path}",
        path=f"{ROOT}:{checkout}",
        script=str(ROOT / "pretrain_gpt.py"),
        cwd=tmp_path,
        cold=True,
    )
    assert run.status == 0, run.output
    assert trace_files(tmp_path) == ["iter-0000003/rank-0.pt.trace.json.gz"]


def test_yaml_configuration_keeps_our_flags(
    launch: Launch, wheel_path: Callable[[str], str], tmp_path: Path
) -> None:
    script = tmp_path / "parse.py"
    script.write_text(
        "from megatron.training.arguments import parse_args\n"
        "from megatron.torch_profile.hooks.arguments import config_of\n"
        "args = parse_args()\n"
        "print('ranks', config_of(args).ranks, config_of(args).enabled)\n"
    )
    yaml = tmp_path / "config.yaml"
    yaml.write_text("train_iters: 10\nenable_msc: false\ndisable_msc: true\n")
    ended = python(
        "-m",
        "megatron.torch_profile",
        str(script),
        *f"--yaml-cfg {yaml} --torch-profile --torch-profile-ranks last".split(),
        path=f"{ROOT}:{wheel_path(WHEELS[0])}",
    )
    assert "ranks ['last'] True" in ended.stdout.splitlines(), ended.stderr


@pytest.fixture
def patient_script(tmp_path: Path) -> str:
    """pretrain_gpt.py in which the other ranks give torchrun ten minutes to end them, not 15 s."""
    script = tmp_path / "train.py"
    script.write_text(
        "import runpy, sys\n"
        "from megatron.torch_profile import log\n"
        "log.exit_with.__kwdefaults__['grace_seconds'] = 600.0\n"
        "sys.argv[0] = 'pretrain_gpt.py'\n"
        "runpy.run_path('pretrain_gpt.py', run_name='__main__')\n"
    )
    return str(script)


def test_a_mistake_ends_all_ranks_and_is_printed_once(launch: Launch, patient_script: str) -> None:
    run = launch(
        f"{TRAIN} --torch-profile --torch-profile-ranks 7", processes=2, script=patient_script
    )
    assert run.status != 0
    assert run.errors == [
        "--torch-profile-ranks 7: ranks must be 0 to 1 (world size 2 = tp 1 x cp 1 x pp 1 x dp 2)."
    ]
    assert "exitcode  : 2" in run.output
    assert run.output.count("Traceback (most recent") == 1, "torchrun's own, about its processes"


def test_a_folder_that_one_rank_cannot_write_ends_all_ranks_before_training(
    launch: Launch, patient_script: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    run = launch(
        f"{TRAIN} --torch-profile --torch-profile-dir {tmp_path}/file/traces",
        processes=2,
        script=patient_script,
    )
    assert run.status != 0
    assert run.errors == [
        f"--torch-profile-dir {tmp_path}/file/traces: rank 0 cannot write there (Not a directory); "
        "name a folder that every profiled rank can write to."
    ]
    assert run.losses == {}
