# SPDX-License-Identifier: Apache-2.0
"""The house stays in rooms that one look takes in."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_MODULES = 17


@pytest.mark.parametrize("house", ["megatron/torch_profile", "megatron/torch_trace", "tests"])
def test_no_folder_holds_more_than_seventeen_modules(house: str) -> None:
    counts: dict[str, int] = {}
    for path in (ROOT / house).rglob("*.py"):
        if path.name != "__init__.py":
            room = str(path.parent.relative_to(ROOT))
            counts[room] = counts.get(room, 0) + 1
    assert {room: count for room, count in counts.items() if count > MOST_MODULES} == {}
