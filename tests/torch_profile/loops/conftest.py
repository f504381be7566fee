# SPDX-License-Identifier: Apache-2.0
"""Every test begins and ends without an attached loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attached_training
import pytest

from megatron.torch_profile.hooks import other_loops
from megatron.torch_profile.record import session
from megatron.torch_profile.record.recorder import Recorder


@pytest.fixture(autouse=True)
def detached(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Note the recorders, whose traces tests wait for, and end what a test leaves."""

    class Noted(Recorder):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            attached_training.recorders.append(self)

    attached_training.recorders.clear()
    monkeypatch.setattr(session, "Recorder", Noted)
    monkeypatch.setattr("sys.argv", ["train.py"])
    yield
    if other_loops._current is not None:
        other_loops._current.detach()
