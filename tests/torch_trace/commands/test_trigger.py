# SPDX-License-Identifier: Apache-2.0
"""What `torch-trace trigger` says where nobody answers."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from command_line import invoked


@pytest.mark.parametrize(
    ("silent", "end"),
    [
        (None, "when there is one.\n"),
        (10.0, "when there is one.\n"),
        (1680.0, "The run has logged nothing for 28 min: maybe the training has ended.\n"),
    ],
)
def test_a_run_that_has_logged_nothing_for_long_may_have_ended(
    tmp_path: Path, silent: float | None, end: str
) -> None:
    (tmp_path / "requests").mkdir()
    (tmp_path / "run.json").write_text("{}")
    if silent is not None:
        metrics = tmp_path / "metrics.jsonl"
        metrics.touch()
        os.utime(metrics, times=(0, time.time() - silent))
    said = invoked("trigger", tmp_path, "--wait", 0).output
    assert "No answer after 0 s: torch-trace status" in said
    assert said.endswith(end)
