# SPDX-License-Identifier: Apache-2.0
"""Processes and threads that read: started once, and never left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron import torch_trace
from megatron.torch_trace.errors import ReaderDiedError
from megatron.torch_trace.parquet.export import export
from megatron.torch_trace.reader import workers
from megatron.torch_trace.reader.ahead import ahead
from megatron.torch_trace.reader.workers import (
    SMALL_BYTES,
    Child,
    Workers,
    are_small,
    started_early,
)

WINDOW = Path(__file__).parents[2] / "data" / "tp2pp2-spans"
DIVIDE = (100).__floordiv__


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(b"x" * SMALL_BYTES)
    return path


def test_small_ranks_are_read_by_this_process_and_large_ones_by_others(
    tmp_path: Path, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a process was started")

    assert are_small([large])
    assert not are_small([large, large])
    monkeypatch.setattr(workers, "_start", refuse)
    torch_trace.analyze(WINDOW)
    torch_trace.convert(WINDOW, tmp_path / "out.pftrace")
    export(WINDOW, tmp_path / "tables")
    with pytest.raises(AssertionError, match="a process was started"):
        torch_trace.convert(WINDOW, tmp_path / "asked.pftrace", jobs=2)


def test_results_come_in_the_order_of_the_jobs() -> None:
    assert list(Workers(2, DIVIDE).map([1, 2, 5, 50])) == [(1, 100), (2, 50), (5, 20), (50, 2)]


def test_a_process_that_was_started_early_serves_one_reading_after_another(large: Path) -> None:
    with started_early(1, [large], "json"):
        first = Child(DIVIDE)
        first.send(20)
        assert first.receive() == 5
        first.stop()
        second = Child((200).__floordiv__)
        second.send(20)
        assert second.receive() == 10
        second.stop()
        assert first.process.pid == second.process.pid
        assert runs(second.process.pid)
    assert not runs(second.process.pid)


def test_one_that_was_left_in_the_middle_is_ended_and_not_used_again(large: Path) -> None:
    with started_early(1, [large], "json"):
        left = Child(DIVIDE)
        left.send(20)
        left.stop()
        assert not runs(left.process.pid)
        assert list(Workers(1, DIVIDE).map([10])) == [(10, 10)]


def test_an_error_of_a_job_is_raised_and_the_process_serves_on(large: Path) -> None:
    with started_early(1, [large], "json"):
        with pytest.raises(ZeroDivisionError):
            list(Workers(1, DIVIDE).map([0]))
        assert list(Workers(1, DIVIDE).map([10])) == [(10, 10)]


def test_a_process_that_dies_is_one_sentence_that_says_what_to_try(large: Path) -> None:
    with started_early(1, [large], "json"):
        child = Child(os._exit)
        child.send(9)
        with pytest.raises(ReaderDiedError, match="died, maybe for lack of memory; try -j 1"):
            child.receive()
        child.stop()


def test_nothing_is_started_early_for_small_files_or_none(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(b"x")
    with started_early(3, [small, tmp_path / "absent", "-"], "json"):
        assert workers._spare == []


def test_without_an_early_start_no_process_outlives_its_reading() -> None:
    child = Child(DIVIDE)
    child.send(50)
    assert child.receive() == 2
    child.stop()
    assert not runs(child.process.pid)


def test_pieces_made_ahead_are_the_same_and_their_error_comes_after_them() -> None:
    def pieces() -> Iterator[bytes]:
        yield from (b"%d" % number for number in range(100))
        raise ValueError("the disk is gone")

    seen = []
    with pytest.raises(ValueError, match="the disk is gone"):
        list(ahead(pieces()))
    for piece in (found := ahead(pieces())):
        seen.append(piece)
        if len(seen) == 100:
            break
    found.close()  # type: ignore[attr-defined]
    assert seen == [b"%d" % number for number in range(100)]


def test_whoever_stops_early_ends_the_thread_that_makes_pieces() -> None:
    def without_end() -> Iterator[bytes]:
        while True:
            yield b"x"

    found = ahead(without_end())
    assert next(iter(found)) == b"x"
    found.close()  # type: ignore[attr-defined]
    assert "ahead" not in {thread.name for thread in threading.enumerate()}


def test_a_process_that_dies_in_the_middle_of_an_answer_is_the_same_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_an_answer.py").write_text(
        "import os\n"
        "def answer(job):\n"
        "    os.write(1, b'\\x80\\x05\\x95\\xff\\0\\0\\0\\0\\0\\0\\0')\n"
        "    os._exit(9)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import half_an_answer  # type: ignore[import-not-found]

    with pytest.raises(ReaderDiedError, match="died"):
        list(Workers(1, half_an_answer.answer).map([1]))


def test_a_process_that_works_for_a_parent_that_was_killed_ends_too() -> None:
    root = Path(__file__).parents[3]
    code = (
        "import time\n"
        "from megatron.torch_trace.reader.workers import Child\n"
        "child = Child(time.sleep)\n"
        "child.send(0)\n"
        "child.receive()\n"
        "child.send(600)\n"
        "print(child.process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 300
    while lives(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not lives(child)


def lives(pid: int) -> bool:
    """Whether it runs; one that has ended and that nobody has waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
