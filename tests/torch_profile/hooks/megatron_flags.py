# SPDX-License-Identifier: Apache-2.0
"""Megatron's parser with our flags."""

from __future__ import annotations

import argparse
import sys

import pytest

from megatron.torch_profile.hooks import arguments


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
