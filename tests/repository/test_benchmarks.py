# SPDX-License-Identifier: Apache-2.0
"""Benchmarks run seldom: what they import, also in the programs that they start, is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).parents[2]
_IMPORT = re.compile(
    r"^ *from (megatron\.torch_(?:profile|trace)[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE
)


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda p: p.name)
def test_what_a_benchmark_imports_is_there(file: Path) -> None:
    for module, names in _IMPORT.findall(file.read_text()):
        found = importlib.import_module(module)
        for name in names.strip("() \n").replace("\n", " ").split(","):
            word = name.split(" as ")[0].strip()
            if word and not hasattr(found, word):
                importlib.import_module(f"{module}.{word}")


def test_the_evening_runs_benchmarks_that_are_there_each_by_its_own_name() -> None:
    plan = tomllib.loads((ROOT / "benchmarks" / "evening.toml").read_text())["benchmark"]
    files = [re.findall(r"benchmarks/\w+\.py", one["command"]) for one in plan]
    assert all(len(found) == 1 and (ROOT / found[0]).is_file() for found in files)
    names = [one["name"] for one in plan]
    assert len(set(names)) == len(names)
