# SPDX-License-Identifier: Apache-2.0
"""Processes that read a large trace start before the analysis is imported; for others none does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from megatron.torch_trace.commands.terminal.early_readers import readers_of
from megatron.torch_trace.format.file_names import kept_analysis_of
from megatron.torch_trace.reader import workers
from megatron.torch_trace.reader.workers import SMALL_BYTES, end_early


@pytest.fixture
def window(tmp_path: Path) -> Path:
    """A folder with a large file, and beside it one that is small."""
    folder = tmp_path / "iter-0000003"
    folder.mkdir()
    (folder / "rank-0.pt.trace.json.gz").write_bytes(b"x" * SMALL_BYTES)
    (folder / "rank-1.pt.trace.json.gz").write_bytes(b"x")
    return folder


def started(paths: str | list[str], jobs: int | None, *, use_partials: bool = True) -> int:
    with readers_of(paths, jobs, use_partials=use_partials):
        return len(workers._spare)


def test_a_large_trace_has_readers_beside_this_process(window: Path) -> None:
    assert started([str(window)], 3) == 2
    assert started(str(window.parent), 2) == 1
    assert workers._spare == []


def test_those_without_work_can_end_before_the_answer_is_complete(
    window: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_END_SECONDS", 300.0)  # a Python begins late on a busy machine
    with readers_of(str(window), 2):
        (process,) = workers._spare
        end_early()
        assert process.returncode == 0
        assert workers._spare == []


def begun(paths: list[str]) -> list[bool]:
    """Of each process that is started, whether it begins to read."""
    programs: list[bool] = []
    start = workers._start

    def note(first: str) -> subprocess.Popen[bytes]:
        programs.append(".begin(" in first)
        return start(first)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "_start", note)
        started(paths, 3)
    return programs


def test_one_reader_begins_at_once_where_there_is_one_large_trace_alone(window: Path) -> None:
    assert begun([str(window)]) == [True, False]
    (window / "rank-2.pt.trace.json.gz").write_bytes(b"x" * SMALL_BYTES)
    assert begun([str(window)]) == [False, False]
    assert begun([str(window / "rank-0.pt.trace.json.gz")]) == [True, False]


def test_one_process_small_traces_and_paths_that_are_not_there_need_no_readers(
    window: Path,
) -> None:
    assert started([str(window)], 1) == 0
    assert started([str(window / "rank-1.pt.trace.json.gz"), "absent", "-"], 4) == 0


def test_a_trace_that_need_not_be_read_has_no_readers(window: Path) -> None:
    kept = kept_analysis_of(window / "rank-0.pt.trace.json.gz")
    kept.parent.mkdir()
    kept.write_bytes(b"x" * SMALL_BYTES)
    assert started([str(window)], 2) == 0
    assert started([str(window)], 2, use_partials=False) == 1
