# SPDX-License-Identifier: Apache-2.0
"""Flags that no test before has parsed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from megatron.torch_profile.hooks import arguments


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("RANK", raising=False)
    yield
    arguments._parsed = None
