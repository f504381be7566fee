# SPDX-License-Identifier: Apache-2.0
"""Flags in a YAML file: what they mean, and mistakes as one sentence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from megatron_flags import parse

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.hooks import arguments

pytestmark = pytest.mark.usefixtures("fresh")


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
            "--torch-profile-preset everything: must be one of light, overlap, modules, memory, "
            "full.",
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
