# SPDX-License-Identifier: Apache-2.0
"""docs/stories.md shows what its commands print of the recordings in this repository."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command_line import run

ROOT = Path(__file__).parents[2]
STORIES = (ROOT / "docs" / "stories.md").read_text()
BLOCKS = re.findall(r"^ {4}\$ torch-trace (.*)\n((?: {4}.*\n)+)", STORIES, re.MULTILINE)


def test_there_is_a_story_of_each_recording_with_a_known_cause() -> None:
    assert len(BLOCKS) > 8
    known = [one.name for one in (ROOT / "tests" / "data" / "analysis").iterdir() if one.is_dir()]
    assert [name for name in known if f"analysis/{name}" not in STORIES] == []


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=lambda text: text[:50])
def test_a_story_shows_what_is_printed(
    command: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    arguments = shlex.split(command)
    if arguments[0] == "analyze":
        arguments.append("--no-partials")
    printed = [line.strip() for line in run(*arguments).stdout.decode().splitlines()]
    wanted = [line.strip() for line in shown.splitlines()]
    assert [line for line in wanted if line != "..." and line not in printed] == []
