# SPDX-License-Identifier: Apache-2.0
"""What `--plan` prints on a page is what it prints, and pages in other languages say the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
STARTED = DOCS / "getting-started.md"
FLAG = re.compile(r"--torch-profile[\w-]*(?: (?!--)[^\s\\]+)*")


def code(page: Path) -> list[str]:
    """The blocks of a page that hold commands or output, without comments."""
    blocks = re.findall(r"(?:^ {4}.*\n(?:\n(?= {4}))?)+", page.read_text(), re.MULTILINE)
    return [re.sub(r" {2,}# .*", "", block) for block in blocks]


def plan_command(page: Path) -> str:
    return next(block for block in code(page) if " --plan " in block)


def printed(command: str, folder: Path) -> list[str]:
    """The lines that a plan prints in an empty folder, which it leaves as it is."""
    (folder / "pretrain_gpt.py").touch()
    done = subprocess.run(
        ["bash", "-c", command.replace("python ", f"{sys.executable} ", 1)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [path.name for path in folder.iterdir()] == ["pretrain_gpt.py"]
    return (done.stdout + done.stderr).splitlines()


def shown(page: Path) -> list[list[str]]:
    """The lines of each block of a page that shows a plan."""
    plans = [block for block in code(page) if "[torch-profile plan]" in block]
    return [[line.strip() for line in block.splitlines() if line.strip()] for block in plans]


@pytest.mark.parametrize("page", [STARTED, DOCS / "scale.md"], ids=lambda page: page.stem)
def test_a_plan_prints_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    lines = shown(page)[0]
    assert len(lines) == 3
    of_the_command = printed(plan_command(page), tmp_path)
    assert [line for line in lines if line not in of_the_command] == []


def test_the_plan_of_all_ranks_prints_what_the_page_about_scale_shows(tmp_path: Path) -> None:
    page = DOCS / "scale.md"
    command = plan_command(page).replace("tp=0,dp=0", "all")
    (line,) = shown(page)[1]
    assert line in printed(command, tmp_path)


@pytest.mark.parametrize(("ranks", "count"), [("tp=0,dp=0", 8), ("tp=0,pp=0", 256)])
def test_the_table_of_questions_has_as_many_traces_as_the_plan(
    ranks: str, count: int, tmp_path: Path
) -> None:
    page = DOCS / "scale.md"
    assert re.search(rf"^\| .*\| `{ranks}` \| {count}: ", page.read_text(), re.MULTILINE)
    command = plan_command(page).replace("tp=0,dp=0", ranks)
    assert any(f"in all: {count} traces" in line for line in printed(command, tmp_path))


@pytest.mark.parametrize("language", ["ja", "zh"])
def test_a_translation_has_the_same_commands_and_links(language: str) -> None:
    translation = STARTED.with_name(f"getting-started.{language}.md")
    assert code(translation) == code(STARTED)
    others = r"\]\((?!getting-started)([^)]+)\)"
    assert re.findall(others, translation.read_text()) == re.findall(others, STARTED.read_text())


def test_the_plan_is_asked_for_with_the_flags_of_the_launch() -> None:
    launch = next(block for block in code(STARTED) if "srun" in block)
    assert FLAG.findall(plan_command(STARTED)) == FLAG.findall(launch) != []
