# SPDX-License-Identifier: Apache-2.0
"""`torch-trace mcp` where the extra is not installed."""

from __future__ import annotations

import sys

import pytest
from command_line import last_line, run


def test_a_missing_sdk_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    done = run("mcp", "anything")
    assert done.returncode == 2
    assert last_line(done.stderr) == (
        "torch-trace: mcp: the SDK of the Model Context Protocol is not installed, in version 2 or "
        "newer; pip install 'mcp>=2'."
    )
