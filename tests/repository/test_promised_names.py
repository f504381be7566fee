# SPDX-License-Identifier: Apache-2.0
"""Flags, commands, Python names, JSON keys, metrics and columns that were promised stay."""

from __future__ import annotations

import json

import pytest
from promised_names import FILE, all_names

PROMISED: dict[str, list[str]] = json.loads(FILE.read_text())


@pytest.fixture(scope="module")
def names() -> dict[str, list[str]]:
    return all_names()


@pytest.mark.parametrize("kind", PROMISED)
def test_what_was_promised_is_there(kind: str, names: dict[str, list[str]]) -> None:
    gone = [name for name in PROMISED[kind] if name not in {*names[kind]}]
    assert gone == [], "a script of a user breaks; promised_names.py says what to do"


def test_the_first_twelve_flags_never_change() -> None:
    """They are in launch scripts already: docs/migration.md."""
    assert PROMISED["flags"][:12] == [
        "--torch-profile False",
        "--torch-profile-ranks ['0']",
        "--torch-profile-wait 0",
        "--torch-profile-warmup 1",
        "--torch-profile-active 1",
        "--torch-profile-repeat 1",
        "--torch-profile-skip-first 1",
        "--torch-profile-record-shapes False",
        "--torch-profile-profile-memory False",
        "--torch-profile-with-stack False",
        "--torch-profile-with-flops False",
        "--torch-profile-with-modules False",
    ]
