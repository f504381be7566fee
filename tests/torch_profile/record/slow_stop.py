# SPDX-License-Identifier: Apache-2.0
"""A profiler whose stop takes long, and the file that its window becomes."""

from __future__ import annotations

import time
from typing import Any

import pytest

TRACE = "iter-0000003/rank-0.pt.trace.json.gz"


def slowly(monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, seconds: float) -> None:
    """A method takes so long beforehand."""
    original = getattr(kind, name)

    def slow(*args: Any) -> Any:
        time.sleep(seconds)
        return original(*args)

    monkeypatch.setattr(kind, name, slow)
