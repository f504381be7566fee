# SPDX-License-Identifier: Apache-2.0
"""Flags: the fork's block unchanged, mistakes as one sentence with status 2."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from megatron_flags import complaint, megatron_parser, parse

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.hooks import arguments

pytestmark = pytest.mark.usefixtures("fresh")

FORK_BLOCK = (
    "--torch-profile --torch-profile-wait 0 --torch-profile-ranks 0 1 --torch-profile-warmup 1 "
    "--torch-profile-active 1 --torch-profile-repeat 1 --torch-profile-skip-first 1 "
    "--torch-profile-with-flops --torch-profile-profile-memory --torch-profile-with-stack "
    "--torch-profile-with-modules --tensorboard-dir D"
)


def test_the_forks_block_means_what_it_meant() -> None:
    args = parse(FORK_BLOCK)
    assert arguments.config_of(args) == TorchProfileConfig(
        enabled=True,
        ranks=["0", "1"],
        with_flops=True,
        profile_memory=True,
        with_stack=True,
        with_modules=True,
    )
    assert args.tensorboard_dir == "D"


def test_the_twelve_flags_keep_the_forks_names_and_defaults() -> None:
    args = parse("--torch-profile")
    assert {k: v for k, v in vars(args).items() if k.startswith("torch_profile")}.items() >= {
        "torch_profile": True,
        "torch_profile_ranks": ["0"],
        "torch_profile_wait": 0,
        "torch_profile_warmup": 1,
        "torch_profile_active": 1,
        "torch_profile_repeat": 1,
        "torch_profile_skip_first": 1,
        "torch_profile_record_shapes": False,
        "torch_profile_profile_memory": False,
        "torch_profile_with_stack": False,
        "torch_profile_with_flops": False,
        "torch_profile_with_modules": False,
    }.items()


def test_without_the_flag_the_namespace_is_megatrons_own() -> None:
    assert parse("--train-iters 7") == megatron_parser().parse_args(["--train-iters", "7"])
    assert not arguments.config_of(parse("")).enabled


def test_every_flag_is_in_the_help_with_its_default() -> None:
    text = arguments.add_group(megatron_parser()).format_help()
    for flag in ("--torch-profile", "--torch-profile-profile-memory", "--torch-profile-preset"):
        assert f"{flag} " in text or f"{flag}\n" in text
    assert "Default: 0." in text
    assert "Default: cpu cuda." in text


def test_help_survives_a_bare_percent_in_somebody_elses_text() -> None:
    parser = megatron_parser()
    parser.add_argument("--share", help="90% (of all)", default=3)
    parser.add_argument("--fine", help="default %(default)s", default=4)
    text = arguments.add_group(parser).format_help()
    assert "90% (of all)" in text
    assert "default 4" in text


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "--torch-profile --torch-profile-ranks 4",
            "--torch-profile-ranks 4: ranks must be 0 to 3 (world size 4 = tp 1 x cp 1 x pp 1 x "
            "dp 4).",
        ),
        (
            "--torch-profile --tensor-model-parallel-size 2 --torch-profile-ranks tp=9",
            "--torch-profile-ranks tp=9: tp must be 0 to 1 (world size 4 = tp 2 x cp 1 x pp 1 x "
            "dp 2).",
        ),
        (
            "--torch-profile --torch-profile-active 0",
            "--torch-profile-active 0: must be 1 or more.",
        ),
        (
            "--torch-profile --torch-profile-wait foo",
            "argument --torch-profile-wait: invalid int value: 'foo'.",
        ),
        (
            "--torch-profile --torch-profile-compression lzma",
            "argument --torch-profile-compression: invalid choice: 'lzma' (choose from 'gzip', "
            "'zstd', 'none').",
        ),
        (
            "--torch-profile --torch-profile-rank 0",
            "unknown flag --torch-profile-rank: did you mean --torch-profile-ranks?",
        ),
        (
            "--torch-profile-ranks 0 1",
            "--torch-profile-ranks: does nothing without --torch-profile; add --torch-profile.",
        ),
        (
            "--torch-profile --profile",
            "--torch-profile and --profile: two profilers cannot share the GPU's event interface; "
            "drop --profile (nsys, --use-pytorch-profiler) or --torch-profile.",
        ),
        (
            "--torch-profile --torch-profile-spans phases --torch-profile-spans-depth 3",
            "--torch-profile-spans-depth 3: no spans of modules are asked for; "
            "add --torch-profile-spans modules.",
        ),
        (
            "--torch-profile --torch-profile-stacks",
            "--torch-profile-stacks: there are no stacks to write without "
            "--torch-profile-with-stack; add that flag.",
        ),
        (
            "--torch-profile --torch-profile-iterations 101",
            "--torch-profile-iterations 101: this process runs iterations 1 to 100 "
            "(--train-iters 100); choose among these.",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(
    line: str,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *line.split()])
    said = complaint(line, capsys)
    # Python 3.12.8 stopped quoting choices.
    assert said.replace("'", "") == sentence.replace("'", "")


def test_other_mistakes_are_still_argparses_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--torch-profile --train-iters many")
    assert "usage:" in capsys.readouterr().err


def test_the_other_ranks_leave_too_and_give_the_first_time_to_speak(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr("megatron.torch_profile.log.time.sleep", waited.append)
    complaint("--torch-profile --torch-profile-ranks 99", capsys)
    assert waited == [15.0]


def test_a_preset_switches_on_and_never_off() -> None:
    config = arguments.config_of(
        parse("--torch-profile --torch-profile-preset memory --torch-profile-with-flops")
    )
    assert config.profile_memory
    assert config.record_shapes
    assert config.with_stack
    assert config.with_flops


def test_a_folder_that_cannot_be_written_is_noticed_when_flags_are_parsed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    said = complaint(f"--torch-profile --torch-profile-dir {tmp_path}/file/traces", capsys)
    assert said == (
        f"--torch-profile-dir {tmp_path}/file/traces: rank 0 cannot write there (Not a directory); "
        "name a folder that every profiled rank can write to."
    )
    parse(f"--torch-profile --torch-profile-dir {tmp_path}/new/traces")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
