# SPDX-License-Identifier: Apache-2.0
"""A timeline that is ready, and the server that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from running_server import TIMELINE, Running

from megatron.torch_trace.viewing.preparation import READY, Preparation, Progress
from megatron.torch_trace.viewing.site import Site


@pytest.fixture
def preparation(tmp_path: Path) -> Preparation:
    """A timeline that is ready, of a trace that nobody reads."""
    trace = tmp_path / "window" / "rank-0.json"
    trace.parent.mkdir()
    trace.write_text("{}")
    (tmp_path / "secret").write_text("secret")
    made = Preparation([trace], whole_folder=True, links=None)
    made.file.parent.mkdir()
    made.file.write_bytes(TIMELINE)
    made.timeline = Progress(READY, "Ready.", {0: -5_000_000_000_000_000_001})
    made.report, made.reporting = "<p>the report</p>", Progress(READY, "Ready.")
    return made


@pytest.fixture
def ui(tmp_path: Path) -> dict[str, Path]:
    index = tmp_path / "ui" / "index.html"
    index.parent.mkdir()
    index.write_text("<p>Perfetto</p>")
    return {"index.html": index}


@pytest.fixture
def running(preparation: Preparation, ui: dict[str, Path]) -> Iterator[Running]:
    one = Running(Site(preparation, ui))
    yield one
    one.stop()
