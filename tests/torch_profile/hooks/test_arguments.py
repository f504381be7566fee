# SPDX-License-Identifier: Apache-2.0
"""Flags: the fork's block unchanged, mistakes as one sentence with status 2."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.hooks import arguments

FORK_BLOCK = (
    "--torch-profile --torch-profile-wait 0 --torch-profile-ranks 0 1 --torch-profile-warmup 1 "
    "--torch-profile-active 1 --torch-profile-repeat 1 --torch-profile-skip-first 1 "
    "--torch-profile-with-flops --torch-profile-profile-memory --torch-profile-with-stack "
    "--torch-profile-with-modules --tensorboard-dir D"
)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("RANK", raising=False)
    yield
    arguments._parsed = None


def megatron_parser() -> argparse.ArgumentParser:
    """As Megatron builds it: no abbreviations, and hundreds of flags, of which these matter."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--train-iters", type=int, default=100)
    parser.add_argument("--tensor-model-parallel-size", type=int, default=1)
    parser.add_argument("--pipeline-model-parallel-size", type=int, default=1)
    parser.add_argument("--tensorboard-dir")
    parser.add_argument("--yaml-cfg")
    parser.add_argument("--profile", action="store_true")
    return parser


def parse(line: str, monkeypatch: pytest.MonkeyPatch | None = None) -> argparse.Namespace:
    if monkeypatch:
        monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *line.split()])
    return arguments.add_group(megatron_parser()).parse_args(line.split())


def complaint(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a wrong command line prints, once it has ended with status 2."""
    with pytest.raises(SystemExit) as exit_:
        parse(line)
    assert exit_.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("torch-profile: error: ")
    assert err.count("\n") == 1, "one sentence"
    return err.removeprefix("torch-profile: error: ").strip()


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


def test_a_yaml_namespace_keeps_the_command_lines_flags() -> None:
    parse("--yaml-cfg x.yaml --torch-profile --torch-profile-ranks 1 3")
    from_yaml = SimpleNamespace(train_iters=10)
    assert arguments.config_of(from_yaml).ranks == ["1", "3"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"active": "two"}, "--torch-profile-active two: must be a whole number."),
        ({"active": True}, "--torch-profile-active True: must be a whole number."),
        ({"with_stack": "on"}, "--torch-profile-with-stack on: must be true or false."),
        (
            {"preset": "everything"},
            "--torch-profile-preset everything: must be one of overlap, modules, memory, full.",
        ),
        (
            {"activities": "gpu"},
            "--torch-profile-activities ['gpu']: must be some of cpu, cuda.",
        ),
        (
            {"export": ["sync"]},
            "--torch-profile-export ['sync']: must be one of background, sync.",
        ),
        ({"frequency": None, "spans": None, "preset": None}, None),
    ],
    ids=str,
)
def test_a_mistake_in_yaml_is_one_sentence(
    flags: dict[str, Any], sentence: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {f"torch_profile_{name}": value for name, value in flags.items()}
    from_yaml = SimpleNamespace(torch_profile=True, **values)
    if sentence is None:
        assert arguments.config_of(from_yaml).enabled
        return
    with pytest.raises(SystemExit) as ended:
        arguments.config_of(from_yaml)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"torch-profile: error: {sentence}\n"


def test_yaml_may_hold_the_flags_itself() -> None:
    parse("--yaml-cfg x.yaml")
    from_yaml = SimpleNamespace(torch_profile=True, torch_profile_ranks=[0, 2])
    assert arguments.config_of(from_yaml) == TorchProfileConfig(enabled=True, ranks=["0", "2"])


def test_a_preset_switches_on_and_never_off() -> None:
    config = arguments.config_of(
        parse("--torch-profile --torch-profile-preset memory --torch-profile-with-flops")
    )
    assert config.profile_memory
    assert config.record_shapes
    assert config.with_stack
    assert config.with_flops


def test_a_fork_with_flags_of_its_own_gets_a_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parser = megatron_parser()
    parser.add_argument("--torch-profile", action="store_true")
    with pytest.raises(SystemExit) as exit_:
        arguments.add_group(parser)
    assert exit_.value.code == 2
    assert "defines --torch-profile flags of its own" in capsys.readouterr().err


def test_a_fork_that_adds_its_flags_later_gets_the_same_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source = tmp_path / "fork_arguments.py"
    source.write_text("def _add(parser):\n    parser.add_argument('--torch-profile')\n")
    module: Any = ModuleType("fork_arguments")
    module.__file__ = str(source)
    exec(compile(source.read_text(), source, "exec"), module.__dict__)
    with pytest.raises(SystemExit):
        arguments.add_group(megatron_parser(), where=module)
    assert f"({source})" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["--local-rank", "--local_rank"])
@pytest.mark.parametrize("known", ["--local-rank", "--local_rank"])
def test_a_launchers_spelling_of_the_local_rank_is_the_parsers(
    given: str, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", f"{given}=3", "--torch-profile"])
    parser = megatron_parser()
    parser.add_argument(known, type=int, dest="local_rank")
    assert arguments.add_group(parser).parse_args().local_rank == 3


@pytest.mark.parametrize("words", [[], ["--train-iters", "9"]], ids=str)
def test_a_fork_that_parses_other_words_keeps_the_command_lines_flags(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # That there is such a rank shows when the fork has read its own file.
    line = "train pretrain --config x.yaml --torch-profile --torch-profile-ranks tp=1 3"
    monkeypatch.setattr(sys, "argv", ["main.py", *line.split()])
    parsed = arguments.add_group(megatron_parser()).parse_args(words)
    assert arguments.config_of(parsed).ranks == ["tp=1", "3"]
    # What the fork makes of it may hold none of ours.
    assert arguments.config_of(SimpleNamespace(train_iters=9)).ranks == ["tp=1", "3"]


def test_a_fork_without_megatrons_parser_keeps_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "parser_seen", False)
    monkeypatch.setattr(
        sys, "argv", ["main.py", "run", "--torch-profile", "--torch-profile-stacks"]
    )
    assert arguments.config_of(SimpleNamespace(train_iters=9)).stacks
    monkeypatch.setattr(sys, "argv", ["main.py", "run"])
    assert not arguments.config_of(SimpleNamespace(train_iters=9)).enabled


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
