# SPDX-License-Identifier: Apache-2.0
"""Numbers that no float holds, in what a file says of itself: what is written is strict JSON."""

from __future__ import annotations

from pathlib import Path

from trace_builder import event, strict, text

from megatron.torch_trace.rewrite.selection import Selection
from megatron.torch_trace.rewrite.slim.slim import slim


def trace(tmp_path: Path) -> Path:
    path = tmp_path / "rank-0.json"
    own = '"torch_profile": {"rank": 0, "slim": {"streams": [1e999]}}, "traceEvents"'
    whole = text(event("a", 0, 10)).decode()
    path.write_text(whole.replace('"traceEvents"', own, 1))
    return path


def test_a_number_that_no_float_holds_is_null_where_slim_notes_again(tmp_path: Path) -> None:
    slim(trace(tmp_path), tmp_path / "slim.json", Selection(drop=frozenset({"flows"})))
    assert strict((tmp_path / "slim.json").read_bytes())["torch_profile"] == {
        "rank": 0,
        "slim": {"streams": [None], "drop": ["flows"]},
    }
