# SPDX-License-Identifier: Apache-2.0
"""The configs in examples/component/ run on the CPU with small sizes; their answers are whole."""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path
from typing import Any

import pytest

from megatron.torch_profile.component.__main__ import command
from megatron.torch_profile.component.config import read
from megatron.torch_profile.component.measure.ceilings import Ceilings

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples" / "component").glob("*.yaml"))
SMALL = {
    "sequence": 8,
    "micro_batch": 1,
    "hidden": 32,
    "heads": 4,
    "ffn": 32,
    "vocabulary": 64,
    "layers": 2,
}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # a target of a file is named from here
    monkeypatch.setattr(
        "megatron.torch_profile.component.measure.ceilings.measured",
        lambda device, dtype: Ceilings("a device", dtype, 1e15, 1e15, "2026-11-28T12:00+00:00"),
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Of each case garbage is collected, a hundred times: not in what the imports have made by now.
    gc.freeze()


def small(path: Path, folder: str) -> list[str]:
    """Overrides that make an example fit a test; compiled variants run their graphs as they are."""
    config = read(str(path))
    words: dict[str, Any] = {
        f"sizes.{key}": value for key, value in SMALL.items() if key in config.sizes
    }
    words |= {"warmup": 1, "measure": 3, "record": 1, "dir": folder}
    for key in config.grid:
        if key.startswith("sizes."):
            words[f"grid.{key}"] = [8, 16]
    for name, variant in config.variants.items():
        if variant.compile:
            words[f"variants.{name}.compile"] = {"backend": "eager"}
    return [word for k, v in words.items() for word in ("--override", f"{k}={json.dumps(v)}")]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 6


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.slow
def test_an_example_runs_on_the_cpu(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.main([str(path), *small(path, str(tmp_path)), "--json"], standalone_mode=False)
    answer = json.loads(capsys.readouterr().out)
    measured = [one for one in answer["variants"] if not one["left_out"]]
    assert len(measured) >= 2
    assert {one["failure"] for one in measured} == {None}
    assert all(one["median_us"] > 0 and one["window"] for one in measured)
    page = (Path(answer["run_folder"]) / "artifacts" / "component.html").read_text()
    assert all(re.search(rf">\s*{re.escape(one['name'])}\s*<", page) for one in measured)
    assert "{{" not in page


def test_an_example_says_in_its_first_line_what_it_answers() -> None:
    assert [path.name for path in EXAMPLES if not path.read_text().startswith("# ")] == []
