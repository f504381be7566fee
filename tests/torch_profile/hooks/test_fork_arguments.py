# SPDX-License-Identifier: Apache-2.0
"""Flags beside those of a fork of Megatron, or of a launcher."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from megatron_flags import megatron_parser

from megatron.torch_profile.hooks import arguments

pytestmark = pytest.mark.usefixtures("fresh")


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
