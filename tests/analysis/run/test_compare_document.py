# SPDX-License-Identifier: Apache-2.0
"""docs/compare.md shows what `compare` prints of two larger recordings."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import run

ROOT = Path(__file__).parents[3]


def test_the_example_is_what_is_printed(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "compare.md").read_text()
    first = page.index("    $ torch-trace compare dp4 dp4-rank2-slow\n")
    _, *shown = page[first : page.index("\n\n## ", first)].splitlines()
    monkeypatch.chdir(shared / "h200")
    monkeypatch.setenv("COLUMNS", "100")
    done = run("compare", "dp4", "dp4-rank2-slow")
    printed = [line.strip() for line in done.stdout.decode().splitlines()]
    assert len(shown) > 40
    # Tables are left out where it says `...`.
    assert [line for line in map(str.strip, shown) if line not in {*printed, "..."}] == []
