# SPDX-License-Identifier: Apache-2.0
"""Benchmarks run seldom: what they import, also in the programs that they start, is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

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
