# SPDX-License-Identifier: Apache-2.0
"""Every test begins and ends without an attached loop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attached_training
import pytest
from documented_loops import LIBRARIES, Run, run_rank
from warm_child import warm_python

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


@pytest.fixture(scope="module")
def python() -> Iterator[str]:
    """Has imported what takes longer than the loops."""
    with warm_python(os.environ, LIBRARIES) as warm:
        yield str(warm.command)


@pytest.fixture
def run(python: str, tmp_path: Path) -> Run:
    return partial(run_rank, python, tmp_path)
