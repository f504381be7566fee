# SPDX-License-Identifier: Apache-2.0
"""Kept analyses of many ranks are minutes of reading: a bar on a terminal, a line in a log."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import pytest
from kept_windows import window_of_two

from megatron.torch_trace.analysis.run import rank_pool
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.analysis.run.kept_analyses import keep
from megatron.torch_trace.commands.terminal import analysis_progress
from megatron.torch_trace.commands.terminal.analysis_progress import Progress

READ = "torch-trace: all kept analyses are read; the ranks are compared now."


def looked_at(ranks: int, seconds: int) -> None:
    """Progress of so many kept analyses, with a clock that goes so far at each look."""
    ticks = count(0, seconds)
    with Progress("analyze", lambda: float(next(ticks))) as progress:
        for number in range(ranks):
            progress.kept(number, ranks)
        progress.start([])


def test_a_log_has_a_line_of_many_ranks_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    looked_at(2_048, seconds=5)
    *now_and_then, last = capsys.readouterr().err.splitlines()
    assert now_and_then[0] == "torch-trace: kept analyses of 128 of 2,048 ranks are read."
    assert 5 < len(now_and_then) < 16
    assert last == READ


def test_quick_reading_and_few_ranks_are_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    looked_at(2_048, seconds=0)
    assert capsys.readouterr().err.splitlines() == [READ]
    looked_at(1_000, seconds=60)
    assert capsys.readouterr().err == ""


def test_a_terminal_has_a_bar_and_no_lines_in_between(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    looked_at(1_024, seconds=60)
    written = capsys.readouterr().err
    assert "analyze: kept analyses" in written
    assert "ranks are read" not in written
    assert written.splitlines()[-1].endswith(READ)


def test_traces_that_are_read_afterwards_are_not_called_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (trace := tmp_path / "rank-0.json").write_text("{}")
    with Progress("analyze") as progress:
        progress.kept(0, 2_000)
        progress.start([trace])
        progress.done(trace)
    assert capsys.readouterr().err == ""


def test_every_rank_is_told_while_kept_analyses_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_pool, "_jobs", lambda _: 1)
    window = window_of_two(tmp_path)
    keep([window])
    told: list[tuple[int, int]] = []
    files: list[Path] = []
    analyze(window, on_kept=lambda *one: told.append(one), on_start=files.extend)
    assert (told, files) == ([(0, 2), (1, 2)], [])


@pytest.mark.parametrize("command", ["analyze", "whatif", "report"])
def test_commands_of_many_ranks_tell_how_far_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    from command_line import run

    monkeypatch.setattr(rank_pool, "_jobs", lambda _: 1)
    monkeypatch.setattr(analysis_progress, "_MANY", 2)
    window = window_of_two(tmp_path)
    keep([window])
    output = ["-o", str(tmp_path / "report.html")] if command == "report" else []
    assert READ in run(command, window, *output).stderr.decode()
