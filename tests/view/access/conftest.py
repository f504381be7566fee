# SPDX-License-Identifier: Apache-2.0
"""A window that everybody may write to, and servers with and without a token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from guarded_server import SECRET, TIMELINE, TRACE, a_site, running

from megatron.torch_trace.viewing.preparation import READY, Preparation, Progress
from megatron.torch_trace.viewing.server import Server
from megatron.torch_trace.viewing.token import Token


@pytest.fixture
def preparation(tmp_path: Path) -> Preparation:
    """A window that everybody may write to, and beside it a file that only its user can read."""
    (tmp_path / "id_ed25519").write_bytes(SECRET)
    (tmp_path / "id_ed25519").chmod(0o600)
    trace = tmp_path / "window" / "rank-0.json"
    trace.parent.mkdir()
    trace.write_bytes(TRACE)
    made = Preparation([trace], whole_folder=True, links=None)
    made.file.parent.mkdir()
    made.file.write_bytes(TIMELINE)
    made.timeline = made.reporting = Progress(READY, "Ready.")
    made.report = "<p>the report</p>"
    return made


@pytest.fixture
def token() -> Token:
    return Token()


@pytest.fixture
def server(preparation: Preparation, token: Token) -> Iterator[Server]:
    yield from running(Server(a_site(preparation, token), host="127.0.0.1", port=0))


@pytest.fixture
def open_server(preparation: Preparation) -> Iterator[Server]:
    """With --no-token."""
    yield from running(Server(a_site(preparation, None), host="127.0.0.1", port=0))
