# SPDX-License-Identifier: Apache-2.0
"""Processes beside training: whatever they do, asking after them and ending them takes no time."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from exports import TARGET, export_to, hand_over
from exports import no_process_left as no_process_left
from gates import MINUTES, until
from written_files import files_below

from megatron.torch_profile.export import trace_export, writers
from megatron.torch_profile.export.background import Exporter
from megatron.torch_profile.export.writers import Program


def answer_of(program: Program) -> dict[str, Any] | None:
    """Its answer, asked for as training does; None if it has none after minutes."""
    answers: list[dict[str, Any]] = []

    def has_answered() -> bool:
        answer = program.poll()
        answers.extend([answer] if answer is not None else [])
        return bool(answers)

    if until(has_answered):
        return answers[0]
    program.kill()
    return None


def says(code: str) -> dict[str, Any] | None:
    return answer_of(Program([sys.executable, "-c", code]))


def test_an_answer_may_be_larger_than_a_pipe_holds() -> None:
    """A window of a thousand ranks is a list of a thousand paths."""
    assert says("import json; print(json.dumps({'traces': ['x' * 100] * 2000}))") == {
        "traces": ["x" * 100] * 2000
    }


def test_a_process_left_behind_by_a_program_keeps_nobody_waiting() -> None:
    answer = says(
        "import json, subprocess\n"
        "print(json.dumps({'left': subprocess.Popen(['sleep', '900']).pid}))"
    )
    assert answer is not None
    os.kill(answer["left"], signal.SIGKILL)  # fails if it was waited for


def test_what_else_is_printed_is_no_answer() -> None:
    assert says("print('hello from sitecustomize'); print('{\"a\": 1}')") == {"a": 1}
    assert says("print('hello from sitecustomize')") == {"died": "ended with status 0"}


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Processes that hang in a file system, on which SIGKILL has no effect until it answers."""
    deaf: list[int] = []
    kill = os.kill
    monkeypatch.setattr(writers.os, "kill", lambda pid, number: deaf.append(pid))
    yield deaf
    for pid in deaf:
        kill(pid, 9)
        os.waitpid(pid, 0)


def test_a_child_that_cannot_be_killed_holds_training_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unkillable: list[int]
) -> None:
    monkeypatch.setattr(trace_export, "save", lambda *_: time.sleep(900))
    monkeypatch.setattr(writers, "_REAP_SECONDS", 0.1)
    export = export_to(tmp_path)
    export.prepare()
    child = writers.fork(None, export)
    child.kill()  # comes back, while the child sleeps on
    assert len(unkillable) == 1


def closed() -> io.TextIOWrapper:
    stream = io.TextIOWrapper(io.BytesIO())
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [closed, lambda: None], ids=["closed", "none"])
def test_a_stdout_that_is_no_more_costs_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: Callable[[], Any]
) -> None:
    exporter = Exporter(MINUTES)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream())
        patched.setattr("logging.raiseExceptions", False)
        hand_over(exporter, export_to(tmp_path))
    assert exporter._flights[0].profiler is not None, "in a child, as always"
    exporter.wait()
    assert files_below(tmp_path) == [TARGET]


@pytest.mark.skipif(
    not Path("/proc/self/oom_score_adj").exists(), reason="only Linux has /proc/self/oom_score_adj"
)
def test_should_memory_run_out_the_child_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    score = Path("/proc/self/oom_score_adj")
    before = score.read_text()
    monkeypatch.setattr(trace_export, "save", lambda *_: seen.write_text(score.read_text()))
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tmp_path))
    exporter.wait()
    assert (seen.read_text().strip(), score.read_text()) == ("1000", before)


def test_so_do_programs() -> None:
    capture = Path(writers.__file__).parents[1]
    for name in (
        "export/artifacts",
        "export/compression",
        "export/kept_analysis",
        "publish/window_summary",
    ):
        source = (capture / f"{name}.py").read_text()
        assert 'if __name__ == "__main__":\n    be_killed_first()\n' in source


def test_a_fork_that_fails_leaves_no_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_fork() -> int:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(os, "fork", no_fork)
    before = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(OSError, match="allocate"):
        writers.fork(None, export_to(tmp_path))
    assert sorted(Path("/proc/self/fd").iterdir()) == before
