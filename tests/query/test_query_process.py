# SPDX-License-Identifier: Apache-2.0
"""The process that answers a query: what it says, what ends it, what it leaves."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from command_line import MAIN, last_line, run
from trace_builder import kernel, launch, step, write_rank

from megatron import torch_trace
from megatron.torch_trace.parquet import export

pytestmark = pytest.mark.usefixtures("own_process")
ROOT = Path(__file__).parents[2]
SLOW = Path(__file__).parents[1] / "data" / "analysis" / "dp4-rank2-slow"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rank(
        tmp_path_factory.mktemp("window") / "rank-0.json", step(1, 0, 90_000),
        launch(1_000, 2_000, 1), kernel("gemm", 3_000, 4_000, 1), rank=0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def tables(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "tables"
    export(trace, folder, jobs=1)
    return folder


def test_a_mistake_is_the_same_sentence_as_in_this_process(tables: Path) -> None:
    done = run("sql", tables, "select nam from kernels")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == (b"torch-trace: nam: no such column in kernels; did you mean name?\n")


def test_nothing_is_left_in_the_temporary_folder(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    torch_trace.sql(trace, "select * from kernels")
    assert run("sql", trace, "select cast(name as int) from kernels").returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_a_question_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    temporary, startup = tmp_path / "temporary", tmp_path / "startup"
    temporary.mkdir()
    startup.mkdir()
    # What answers has a session of its own, and never answers.
    (startup / "sitecustomize.py").write_text(
        "import os, time\nif os.getsid(0) == os.getpid(): time.sleep(900)\n"
    )
    process = subprocess.Popen(
        [*MAIN, "sql", SLOW, "select count(*) from kernels"],
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": f"{startup}:{ROOT}"},
        stderr=subprocess.DEVNULL,
    )
    while not list(temporary.glob("*/kernels.parquet")):
        assert process.poll() is None
        time.sleep(0.01)
    process.terminate()
    assert process.wait(300) == 143
    assert list(temporary.iterdir()) == []


def test_a_query_that_takes_too_much_is_ended_in_a_sentence(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron.torch_trace.query.child._LEAST_MEMORY", 1 << 30)
    monkeypatch.setattr("megatron.torch_trace.query.child._MOST_MEMORY", 1 << 30)
    long = "lpad(name, 900000000, 'x')"
    done = run("sql", tables, f"select {long} as a, {long} as b from kernels")
    assert done.returncode == 1
    assert last_line(done.stderr) == (
        "torch-trace: the query was ended, since it takes more than the 1.07 GB of memory that "
        "it may take; ask for less: filter by rank and step, and join on a call, or on a rank and "
        "a step."
    )


def test_a_query_that_ends_for_another_reason_says_what_it_said(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = "import sys\nprint('Warning', file=sys.stderr)\nsys.exit('No module named polars')\n"
    monkeypatch.setattr("megatron.torch_trace.query.child._PROGRAM", broken)
    done = run("sql", trace, "select 1 from ranks")
    assert (done.returncode, last_line(done.stderr).partition(", perhaps")[0]) == (
        1,
        "torch-trace: the query ended with status 1 (No module named polars)",
    )
