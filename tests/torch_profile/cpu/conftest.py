# SPDX-License-Identifier: Apache-2.0
"""Training without a GPU starts and ends in each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from megatron.torch_profile.cpu import training as cpu


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    cpu._said.clear()
    yield
    assert not cpu.active()


@pytest.fixture
def on_cpu() -> Iterator[None]:
    with cpu.training():
        yield
