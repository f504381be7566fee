# SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING.md says what to do to add something: here it is done, in a copy of the code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
RECIPES = dict(
    re.findall(
        r"^- \*\*(.+?)\*\*(.*(?:\n  .*)*)",
        GUIDE.split("## To add")[1].split("\n## ")[0],
        re.MULTILINE,
    )
)


class Copy:
    """A copy of the code in which files may be changed that a recipe names."""

    def __init__(self, folder: Path, recipe: str) -> None:
        self.folder, self.named = folder, RECIPES[recipe]
        # With what is compiled: files keep their times, and one that is changed is compiled again.
        shutil.copytree(ROOT / "megatron", folder / "megatron")

    def _file(self, name: str) -> Path:
        assert any(name.startswith(one) for one in re.findall(r"`([\w./]+)`", self.named)), name
        return self.folder / name

    def write(self, name: str, text: str) -> None:
        self._file(name).write_text(text)

    def insert(self, name: str, before: str, line: str) -> None:
        text = self._file(name).read_text()
        assert text.count(before) == 1
        self._file(name).write_text(text.replace(before, line + before))

    def answer(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env={"PYTHONPATH": str(self.folder), "PATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def test_the_guide_has_a_recipe_for_each_of_them() -> None:
    assert list(RECIPES) == [
        "a flag", "a kernel name", "a finding", "a command", "a section of the report", "a seam",
    ]  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_file_of_a_recipe_exists(recipe: str) -> None:
    named = re.findall(r"`((?:megatron|docs)/[\w./]*)`", RECIPES[recipe])
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_a_field_is_a_flag(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "a flag")
    copy.insert(
        "megatron/torch_profile/config.py",
        "    ranks: list[str] = flag(",
        '    surprise: int = flag(1, "Surprises.", metavar="N")\n',
    )
    code = (
        "from megatron.torch_profile.hooks.command_line import of_command_line\n"
        "print(of_command_line(['--torch-profile-surprise', '3']).surprise)"
    )
    assert copy.answer("-c", code) == "3"


def test_a_pattern_is_a_kernel_that_communicates(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "a kernel name")
    copy.insert(
        "megatron/torch_trace/format/communication_names.py",
        '    "NVSHMEM',
        '    "a new library": r"^surprise_",\n',
    )
    code = (
        "from megatron.torch_trace.format.communication_names import is_communication\n"
        "print(is_communication('surprise_AllReduce'))"
    )
    assert copy.answer("-c", code) == "True"


def test_a_module_is_a_finding(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "a finding")
    copy.write(
        "megatron/torch_trace/analysis/findings/host/surprise.py",
        "SLUG = 'surprise'\ndef rule(analysis):\n    return []\n",
    )
    code = (
        "from megatron.torch_trace.analysis.findings import modules\n"
        "print([one.SLUG for one in modules()].count('surprise'))"
    )
    assert copy.answer("-c", code) == "1"


def test_a_module_and_a_line_are_a_command(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "a command")
    copy.write(
        "megatron/torch_trace/commands/surprise.py",
        "import click\n@click.command()\ndef command():\n    print('surprised')\n",
    )
    copy.insert(
        "megatron/torch_trace/commands/__init__.py",
        '    "check": ',
        '    "surprise": "Surprises.",\n',
    )
    assert "Surprises." in copy.answer("-m", "megatron.torch_trace", "--help")
    assert copy.answer("-m", "megatron.torch_trace", "surprise") == "surprised"


def test_a_module_and_a_line_are_a_section(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "a section of the report")
    copy.write(
        "megatron/torch_trace/report/sections/surprise.py",
        "def section(subject):\n    return subject.name\n",
    )
    contents = "megatron/torch_trace/report/contents.py"
    copy.insert(contents, "    work,\n", "    surprise,\n")
    copy.insert(contents, "    (work.section, _ALL),\n", "    (surprise.section, _ALL),\n")
    code = (
        "from megatron.torch_trace.report.contents import sections\n"
        "from megatron.torch_trace.report import contents\n"
        "ours = [one for one in contents.CONTENTS if 'surprise' in one[0].__module__]\n"
        "contents.CONTENTS = ours\n"
        "from types import SimpleNamespace as Of\n"
        "one_step = Of(summary=Of(steps=['a step']), ranks=[])\n"
        "print(sections(Of(name='subject', analysis=one_step), contents.Medium.PAGE))"
    )
    assert copy.answer("-c", code) == "['subject']"


def test_a_patch_in_the_table_is_a_seam(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "a seam")
    copy.insert(
        "megatron/torch_profile/hooks/megatron_names.py",
        '    Patch("wandb", "finish"',
        '    Patch("colorsys", "rgb_to_hsv", lambda *given: "wrapped"),\n',
    )
    code = (
        "import colorsys\n"
        "from megatron.torch_profile import install, uninstall\n"
        "install()\n"
        "print(colorsys.rgb_to_hsv(0, 0, 0))\n"
        "uninstall()\n"
        "print(colorsys.rgb_to_hsv(0, 0, 0))"
    )
    assert copy.answer("-c", code).split("\n") == ["wrapped", "(0.0, 0.0, 0)"]


@pytest.mark.parametrize(("house", "column"), [("torch_profile", 0), ("torch_trace", 1)])
def test_the_figure_shows_the_rooms_in_the_order_that_the_contract_holds(
    house: str, column: int
) -> None:
    contract = (ROOT / "pyproject.toml").read_text().split(f'containers = ["megatron.{house}"]')[1]
    layers = re.findall(r'"(.+?)"', contract.split("layers = [")[1].split("]")[0])
    figure = GUIDE.split("    component")[1].split("\n\n")[0]
    lines = re.sub("-+>|trace files", lambda one: " " * len(one[0]), "    component" + figure)
    shown = [(line[4:48].strip(), line[48:].strip())[column] for line in lines.splitlines()]
    assert [one for one in shown if one] == layers
