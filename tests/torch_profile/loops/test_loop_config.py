# SPDX-License-Identifier: Apache-2.0
"""Settings of loops that refuse unknown arguments: code, YAML, environment, in this order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.hooks.loop_config import fields_of
from megatron.torch_trace.errors import UsageError

ON = {"MEGATRON_TORCH_PROFILE": "1"}


def differing(values: dict[str, Any]) -> dict[str, Any]:
    """What is no default."""
    plain = TorchProfileConfig()
    return {name: value for name, value in values.items() if value != getattr(plain, name)}


@pytest.fixture(autouse=True)
def no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py"])


def test_the_environment_says_everything_that_flags_say() -> None:
    environment = {
        **ON,
        "MEGATRON_TORCH_PROFILE_RANKS": "0-7 tp=0,dp=0",
        "MEGATRON_TORCH_PROFILE_ACTIVE": "5",
        "MEGATRON_TORCH_PROFILE_WITH_STACK": "yes",
        "MEGATRON_TORCH_PROFILE_ON_HANG": "60.5",
        "MEGATRON_TORCH_PROFILE_DIR": "/scratch/a folder",
        "MEGATRON_TORCH_PROFILE_PRESET": "modules",
        "MEGATRON_TORCH_PROFILE_SPANS_DEPTH": "",
        "UNRELATED": "1",
    }
    assert differing(fields_of(None, environment)) == {
        "enabled": True,
        "ranks": ["0-7", "tp=0,dp=0"],
        "active": 5,
        "with_stack": True,
        "on_hang": 60.5,
        "dir": "/scratch/a folder",
        "preset": "modules",
    }


def test_environment_wins_over_yaml_and_yaml_over_code(tmp_path: Path) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text("torch_profile:\n  ranks: [1]\n  active: 2\n")
    environment = {
        "MEGATRON_TORCH_PROFILE_CONFIG": str(file),
        "MEGATRON_TORCH_PROFILE_ACTIVE": "3",
    }
    given = TorchProfileConfig(enabled=True, ranks=["0"], active=1, repeat=4)
    assert differing(fields_of(given, environment)) == {
        "enabled": True,
        "ranks": [1],
        "active": 3,
        "repeat": 4,
    }


def test_the_environment_switches_off_what_the_code_switches_on() -> None:
    environment = {"MEGATRON_TORCH_PROFILE": "0", "MEGATRON_TORCH_PROFILE_RANKS": "all"}
    assert not fields_of(TorchProfileConfig(enabled=True), environment)["enabled"]


def test_a_loop_that_lets_arguments_pass_has_them_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["train.py", "--lr", "1", "--torch-profile", "--torch-profile-ranks", "last"]
    monkeypatch.setattr("sys.argv", words)
    assert differing(fields_of(None, {})) == {"enabled": True, "ranks": ["last"]}
    assert differing(fields_of({}, {})) == {}, "code that says something is not overruled"


@pytest.mark.parametrize("given", [{"enabled": True, "spans": ("phases",)}, "yaml", "top"])
def test_code_may_give_a_mapping_or_a_file(given: Any, tmp_path: Path) -> None:
    if isinstance(given, str):
        given = tmp_path / f"{given}.yaml"
        lines = ["enabled: true", "spans: [phases]"]
        nested = given.stem == "yaml"
        head, indent = (["torch_profile:"], "  ") if nested else ([], "")
        given.write_text("\n".join([*head, *(indent + line for line in lines)]))
    assert differing(fields_of(given, {})) == {"enabled": True, "spans": ["phases"]}


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (
            {**ON, "MEGATRON_TORCH_PROFILE_RANK": "0"},
            "MEGATRON_TORCH_PROFILE_RANK: there is no such variable; the nearest is "
            "MEGATRON_TORCH_PROFILE_RANKS.",
        ),
        (
            {**ON, "MEGATRON_TORCH_PROFILE_ZZZ": "0"},
            "MEGATRON_TORCH_PROFILE_ZZZ: there is no such variable.",
        ),
        (
            {**ON, "MEGATRON_TORCH_PROFILE_ACTIVE": "two"},
            "MEGATRON_TORCH_PROFILE_ACTIVE=two: must be a whole number.",
        ),
        (
            {"MEGATRON_TORCH_PROFILE": "on please"},
            "MEGATRON_TORCH_PROFILE=on please: must be 1 or 0.",
        ),
        (
            {**ON, "MEGATRON_TORCH_PROFILE_SPANS": "phases module"},
            "MEGATRON_TORCH_PROFILE_SPANS=phases module: must be some of phases, modules, "
            "sections.",
        ),
        (
            {**ON, "MEGATRON_TORCH_PROFILE_EXPORT": "now"},
            "MEGATRON_TORCH_PROFILE_EXPORT=now: must be one of background, sync.",
        ),
        (
            {**ON, "MEGATRON_TORCH_PROFILE_RANKS": "'0"},
            "MEGATRON_TORCH_PROFILE_RANKS='0: must be words in whole quotes.",
        ),
        (
            {"MEGATRON_TORCH_PROFILE_RANKS": "0"},
            "MEGATRON_TORCH_PROFILE_RANKS: does nothing without MEGATRON_TORCH_PROFILE=1; add "
            "MEGATRON_TORCH_PROFILE=1.",
        ),
        (
            {"MEGATRON_TORCH_PROFILE_CONFIG": "missing.yaml"},
            "MEGATRON_TORCH_PROFILE_CONFIG missing.yaml: cannot be read (No such file or "
            "directory).",
        ),
    ],
    ids=str,
)
def test_a_mistake_in_the_environment_is_one_sentence(
    environment: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UsageError) as raised:
        fields_of(None, environment)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("enabled: [", "is no YAML in line 1."),
        ("- 1", "must hold fields, such as `enabled: true`."),
        ("", "must hold fields, such as `enabled: true`."),
        ("rank: 1", "there is no field rank; the nearest is ranks."),
        ("torch_profile: {help: true}", "there is no field help."),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        fields_of(file, {})
    assert str(raised.value) in (
        f"attach(config=...) {file}: {why}",
        f"attach(config=...) {file}: {why}".replace("line 1", "line 2"),
    )
