# SPDX-License-Identifier: Apache-2.0
"""Several runs in one folder: every command says that, and what to name instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import run
from trace_builder import GEMM, TraceBuilder

COMMANDS = {
    "analyze": [],
    "report": ["-o", "{out}.html"],
    "whatif": [],
    "convert": ["-o", "{out}.pftrace"],
    "merge": ["-o", "{out}.json"],
    "export": ["-o", "{out}"],
    "sql": ["select * from ranks, findings"],
}


def trace(path: Path, rank: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    builder = TraceBuilder(rank, 2).step(5, 0, 100_000).op("aten::mm", 1_000, 9_000)
    return builder.gpu(GEMM, 20_000, 90_000, launch=2_000).write(path)


def said(command: str, folder: Path, tmp_path: Path) -> str:
    options = [one.format(out=tmp_path / "out") for one in COMMANDS[command]]
    result = run(command, folder, *options)
    assert result.returncode == 2
    assert result.stdout == b""
    return " ".join(result.stderr.decode().split())


@pytest.mark.parametrize("command", COMMANDS)
def test_of_folders_with_the_same_rank_one_has_to_be_named(command: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for name in ("before", "after"):
        trace(runs / name / "rank-0.json")
        trace(runs / name / "rank-1.json", 1)
    assert said(command, runs, tmp_path) == (
        f"torch-trace: {runs}: holds traces in 2 folders (after, before), and more than one of "
        "them has rank 0, as several runs or windows do; name one folder, such as "
        f"{runs / 'after'}."
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_of_several_runs_a_window_has_to_be_named(command: str, tmp_path: Path) -> None:
    runs = tmp_path / "traces"
    for name in ("20261128-100000", "20261129-100000"):
        trace(runs / name / "iter-0000005" / "rank-0.pt.trace.json")
    window = runs / "20261129-100000" / "iter-0000005"
    assert said(command, runs, tmp_path) == (
        f"torch-trace: {runs}: holds 2 runs (20261128-100000, 20261129-100000); name the folder of "
        f"one window, such as {window}."
    )


def test_two_traces_in_one_folder_are_both_named(tmp_path: Path) -> None:
    one, other = trace(tmp_path / "a.json"), trace(tmp_path / "b.json")
    assert said("analyze", tmp_path, tmp_path / "x") == (
        f"torch-trace: {other} and {one}: both are rank 0; name only one of them."
    )
