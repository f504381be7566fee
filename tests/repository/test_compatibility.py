# SPDX-License-Identifier: Apache-2.0
"""docs/compatibility.md holds what was run, and nothing else."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import compatibility  # noqa: E402


def test_the_page_is_what_the_results_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = json.loads((ROOT / "docs" / "compatibility.json").read_text())
    monkeypatch.setattr(compatibility, "PAGE", tmp_path / "page.md")
    compatibility.write_page({name: compatibility.Result(**one) for name, one in results.items()})
    assert (tmp_path / "page.md").read_text() == (ROOT / "docs" / "compatibility.md").read_text()
    assert results
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", one["date"]) for one in results.values())


def test_every_kind_of_cell_has_a_table() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    results = json.loads((ROOT / "docs" / "compatibility.json").read_text())
    for name in results:
        assert f"\n| {name.partition(' ')[2]} |" in page, name


def test_the_last_error_is_told_without_folders_of_this_machine() -> None:
    output = "Traceback\n[rank0]: ValueError: no /a/folder/of/mine/train.py here\nmore\n"
    assert compatibility._last(output) == "ValueError: no train.py here"
    assert compatibility._last("\n") == "nothing was said"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ('{"a": 1, "b": 0.1, "c": "x"}', True),
        ('{"a": 1, "b": 0.10000000000000002, "c": "x"}', True),
        ('{"a": 1, "b": 0.11, "c": "x"}', False),
        ('{"a": 2, "b": 0.1, "c": "x"}', False),
        ('{"a": 1, "b": 0.1, "c": "y"}', False),
    ],
)
def test_answers_are_the_same_but_for_how_python_adds_fractions(other: str, same: bool) -> None:
    assert compatibility._same('{"a": 1, "b": 0.1, "c": "x"}', other) is same


def test_cells_are_the_wheels_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("0.17.0", "0.19.2", "hta"):
        (tmp_path / ".wheels" / name).mkdir(parents=True)
    monkeypatch.setattr(compatibility, "ROOT", tmp_path)
    options = SimpleNamespace(checkouts=None, only=None)
    found = [cell.name for cell in compatibility.cells(options, tmp_path)]
    assert found == ["wheel 0.17.0", "wheel 0.19.2"]
