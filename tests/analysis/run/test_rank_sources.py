# SPDX-License-Identifier: Apache-2.0
"""What is asked of the file system to find traces and their kept analyses, and what is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from analyze_document import document
from kept_windows import trace, window_of_two

from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.analysis.run.kept_analyses import keep
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files import sources


@pytest.fixture
def window(tmp_path: Path) -> Path:
    return window_of_two(tmp_path)


def test_a_trace_with_a_kept_analysis_is_not_opened_to_see_whether_it_is_a_trace(
    window: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep([window])
    direct = document(analyze(window))
    trace(2).write(window / "rank-2.pt.trace.json")
    opened: list[str] = []
    monkeypatch.setattr(sources, "stranger", lambda path: opened.append(path.name))
    kept = keep([window])
    assert opened == ["rank-2.pt.trace.json"]
    assert (len(kept.written), kept.fresh) == (1, 2)
    opened.clear()
    assert document(analyze(window, ranks=[0, 1]))["ranks"] == direct["ranks"]
    assert opened == []


def test_a_command_that_needs_events_says_that_only_kept_analyses_are_there(window: Path) -> None:
    keep([window])
    for path in window.glob("*.json"):
        path.unlink()
    with pytest.raises(UsageError) as error:
        sources.find_traces([window])
    assert str(error.value) == (
        f"{window}: holds no trace, but kept analyses, which have no single events."
    )
