# SPDX-License-Identifier: Apache-2.0
"""Inputs of scripts/fuzz.py: a number always gives the same one, whatever was made before."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MADE = """
import random, sys, tempfile, zlib
from pathlib import Path
sys.path[:0] = [{scripts!r}, {root!r}]
from fuzz import prepared
for number in map(int, sys.argv[2:]):
    with tempfile.TemporaryDirectory() as folder:
        prepared(sys.argv[1], number, Path(folder))
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        print([(path.name, zlib.crc32(path.read_bytes())) for path in files])
"""


def made(kind: str, *numbers: int) -> list[str]:
    """What the inputs of these numbers hold, made one after the other in one process."""
    code = MADE.format(scripts=str(ROOT / "scripts"), root=str(ROOT))
    command = [sys.executable, "-c", code, kind, *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("kind", ["trace", "memory", "flight"])
def test_an_input_is_the_same_whatever_was_made_before_it(kind: str) -> None:
    rng = random.Random(kind)
    numbers = [rng.randrange(1 << 40) for _ in range(12)]
    assert made(kind, *numbers) == made(kind, *reversed(numbers))[::-1]


def test_inputs_that_once_could_not_be_made_are_made() -> None:
    # A value was put into itself, by changes of earlier inputs: the child that makes them died.
    assert len(made("trace", 276160409749, 1005906917366)) == 2
