# SPDX-License-Identifier: Apache-2.0
"""How loops of other packages run: with the page's lines, set in the environment."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOOPS = ROOT / "scripts" / "loops"
sys.path[:0] = [str(ROOT / "scripts"), str(LOOPS)]

import loop_trainings  # noqa: E402
import megatron_trainings  # noqa: E402
import page_examples  # noqa: E402


def test_a_loop_trains_without_our_settings_and_with_those_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[list[str], dict[str, str]]] = []

    def said(
        command: list[str], folder: Path, path: tuple[Path, ...], more: dict[str, str]
    ) -> tuple[int, str]:
        ran.append((command, more))
        return 0, f"iteration 1/4 | loss: {len(ran)} | grad norm: 1 |"

    versions = "3.12.1 2.14.1+cu130 0.19.2 0.3.1"
    monkeypatch.setattr(megatron_trainings.subprocess, "check_output", lambda *a, **b: versions)
    monkeypatch.setattr(loop_trainings, "said", said)
    name, found = loop_trainings.loop_trained("slime", "python", tmp_path)
    assert name == "loop slime 0.3.1, train"
    assert found.versions == {"python": "3.12.1", "torch": "2.14.1", "megatron-core": "0.19.2"}
    assert (found.works, found.found) == (False, "the losses are not the same")
    (plain, before), (profiled, after) = ran
    assert plain == profiled
    assert plain[-4:] == ["-m", "megatron.torch_profile", "--cpu", str(LOOPS / "slime_loop.py")]
    assert before == {"SLIME_ACCELERATOR": "cpu"}
    (folder,) = tmp_path.iterdir()
    assert {name: after[name] for name in after.keys() - before.keys()} == {
        "MEGATRON_TORCH_PROFILE": "1",
        "MEGATRON_TORCH_PROFILE_RANKS": "all",
        "MEGATRON_TORCH_PROFILE_SPANS": "phases modules",
        "MEGATRON_TORCH_PROFILE_DIR": str(folder / "runs"),
    }


@pytest.mark.parametrize("name", sorted(loop_trainings.LOOPS))
def test_a_script_takes_its_lines_from_a_heading_of_the_page(name: str) -> None:
    tree = ast.parse((LOOPS / loop_trainings.LOOPS[name].script).read_text())
    headings = [
        call.args[0].value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "page_examples"
        and isinstance(call.args[0], ast.Constant)
    ]
    assert len(headings) == 1
    assert "torch_profile" in page_examples.code(str(headings[0]))


def test_lines_are_imported_under_the_name_that_users_give_them() -> None:
    page = "# Loops\n\n## toy\n\n```yaml\na: 1\n```\n\n```python\nanswer = 42\n```\n\n## other\n"
    assert page_examples.code("toy", page) == "answer = 42\n"
    with pytest.raises(LookupError, match="other: no Python under this heading"):
        page_examples.code("other", page)
