# SPDX-License-Identifier: Apache-2.0
"""What a training writes beside its windows is no stranger to the commands that read them."""

from __future__ import annotations

from pathlib import Path

from command_line import run
from trace_builder import event, kernel, launch, step, write_rank

from megatron.torch_trace.files.sources import find_traces

BESIDE = (
    "run.json",
    "ended.json",
    "metrics.jsonl",
    "requests/20261128-205928-588b.json",
    "requests/20261128-205928-588b.answer.json",
    "hangs/rank-0.iter-0000087.hang.json",
    "hangs/rank-0.iter-0000087.flight.pickle",
    "hangs/rank-0.lock.txt",
    "out-of-memory/rank-0.iter-0000001.memory_snapshot.pickle",
    "out-of-memory/rank-0.iter-0000001.live_bytes.json",
)


def _run(folder: Path, *beside: str) -> Path:
    """A window with the trace of one rank, and files beside it."""
    for name in beside:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    trace = folder / "iter-0000003" / "rank-0.pt.trace.json"
    trace.parent.mkdir(parents=True)
    work = [launch(110_000, 115_000, 7), kernel("gemm", 120_000, 150_000, 7), event("aten::mm")]
    return write_rank(trace, step(3, 100_000, 1_000_000), work)


def test_files_of_the_run_itself_are_neither_traces_nor_skipped(tmp_path: Path) -> None:
    trace = _run(tmp_path, *BESIDE)
    found = find_traces([tmp_path])
    assert (found.traces, found.skipped) == ([trace], [])
    ended = run("analyze", tmp_path, "--no-gains")
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_folder_of_that_name_outside_of_a_run_is_looked_into(tmp_path: Path) -> None:
    _run(tmp_path, "hangs/notes.txt")
    assert [path.name for path, _ in find_traces([tmp_path]).skipped] == ["notes.txt"]
    (tmp_path / "run.json").write_text("{}\n")
    assert find_traces([tmp_path]).skipped == []
