# SPDX-License-Identifier: Apache-2.0
"""Queries are answered in this process, unless a test asks for the process that they really get."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from megatron.torch_trace.query import child
from megatron.torch_trace.query.execution import execute
from megatron.torch_trace.query.tables import Tables


@pytest.fixture(scope="session")
def own_process() -> None:
    """Asked for by tests of that process, which takes half a second to start."""


@pytest.fixture(autouse=True)
def answered_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a query's own process does, done here."""

    def here(files: Mapping[str, Path], query: str, file: Path, **_: Any) -> None:
        execute(Tables(files).frames(), query, file)

    if "own_process" not in request.fixturenames:
        monkeypatch.setattr(child, "run", here)
