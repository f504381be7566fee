# SPDX-License-Identifier: Apache-2.0
"""The matrix asks whether the read side answers the same elsewhere, and reads what is old."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from trace_builder import op, step, text

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

import compatibility_results  # noqa: E402
import read_side  # noqa: E402


@pytest.mark.parametrize(
    ("written", "works", "judged", "found"),
    [
        (
            text(step(1, 0, 10), op("aten::mm", 2, 5), step(2, 10, 20)).decode(),
            True,
            True,
            "analyze, info, check, slim and convert read 2 steps of 2, 3 slices",
        ),
        (
            text(step(1, 0, 10), op("aten::mm", 2, 5)).decode(),
            False,
            True,
            "analyze, info, check, slim and convert read 1 steps of 2, 2 slices",
        ),
        (None, False, False, "it records nothing: ImportError: no torch"),
    ],
    ids=["both steps", "one step", "no trace"],
)
def test_a_trace_of_another_torch_is_read_by_all_commands(
    written: str | None, works: bool, judged: bool, found: str, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    (tmp_path / "given.json").write_text(written or "")
    fails = "echo ImportError: no torch >&2; exit 1"
    records = f'cp {tmp_path}/given.json "$2"' if written else fails
    versions = 'if [ "$1" = -c ]; then echo 3.9.1 1.8.1+cu102; exit; fi'
    python.write_text(f"#!/bin/sh\n{versions}\n{records}\n")
    python.chmod(0o755)
    assert read_side.old_trace(str(python), tmp_path) == (
        "read traces of torch 1.8.1",
        compatibility_results.Result(
            compatibility_results.today(),
            works,
            found,
            {"python": "3.9.1", "torch": "1.8.1"},
            judged,
        ),
    )


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
    assert read_side.same('{"a": 1, "b": 0.1, "c": "x"}', other) is same
