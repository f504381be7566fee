# SPDX-License-Identifier: Apache-2.0
"""Two small traces on disk: a clean one and a damaged one."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_traces import BROKEN, CLEAN
from trace_builder import write


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return write(tmp_path / "rank-0.json.gz", CLEAN)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return write(tmp_path / "rank-1.json.gz", BROKEN)
