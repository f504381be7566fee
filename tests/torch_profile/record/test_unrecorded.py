# SPDX-License-Identifier: Apache-2.0
"""A launch that was asked for traces and recorded none says why, once, at its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from megatron.torch_profile.followers import followers
from megatron.torch_profile.hooks import arguments
from megatron.torch_profile.record.unrecorded import why_nothing

INSTEAD = (
    "call megatron.training.pretrain, or train of megatron.training.training for a loop around it; "
    "a loop of your own takes torch.profiler.profile itself"
)


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "parser_seen", True)
    monkeypatch.setattr(followers, "followed", False)
    monkeypatch.setattr(followers, "stepped", False)


def test_a_script_that_never_trains_by_megatrons_loop(state: None) -> None:
    assert why_nothing(["--torch-profile"], 0) == (
        "--torch-profile recorded nothing: this script never called Megatron's train(), whose "
        f"iterations are followed; {INSTEAD}"
    )


def test_a_training_that_never_takes_a_step(state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "followed", True)
    why = why_nothing(["--torch-profile"], 0)
    assert why is not None
    assert "never called train_step" in why


@pytest.mark.parametrize("words", [[], ["--torch-profile", "--help"]], ids=str)
def test_who_did_not_ask_hears_nothing(state: None, words: list[str]) -> None:
    assert why_nothing(words, 0) is None


def test_an_error_speaks_for_itself_and_so_does_a_step(
    state: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why_nothing(["--torch-profile"], 2) is None
    for name in ("followed", "stepped"):
        monkeypatch.setattr(followers, name, True)
    assert why_nothing(["--torch-profile"], 0) is None


@pytest.mark.parametrize(
    ("script", "status", "lines"),
    [
        ("print('my own loop')", 0, 1),
        # As argparse ends where it does not know our flags.
        ("import sys; sys.exit(2)", 2, 1),
        ("raise ValueError", 1, 0),
    ],
    ids=["loop", "own parser", "failure"],
)
def test_it_is_the_last_line_of_the_log(
    script: str, status: int, lines: int, tmp_path: Path
) -> None:
    path = tmp_path / "loop.py"
    path.write_text(script)
    ended = subprocess.run(
        [sys.executable, "-m", "megatron.torch_profile", str(path), "--torch-profile"],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == status
    said = [line for line in ended.stdout.splitlines() if "recorded nothing" in line]
    assert len(said) == lines
    assert said == ended.stdout.splitlines()[-lines:] if lines else True
