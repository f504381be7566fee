# SPDX-License-Identifier: Apache-2.0
"""Exports in flight: what happens to the trace when its writer fails or is held up."""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from exports import LAUNCH, TARGET, WITHOUT_THREAD, export_to, hand_over, raw_trace, steps
from exports import no_process_left as no_process_left
from gates import MINUTES, Gate, before_each, until
from written_files import files_below

from megatron.torch_profile.export import background, trace_export, writers
from megatron.torch_profile.export.background import Exporter
from megatron.torch_profile.export.compression import Written
from megatron.torch_profile.export.endings import Ending
from megatron.torch_profile.export.trace_export import Export
from megatron.torch_trace.system.memory import HostMemory


def saves_wait_at(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every save, in whichever process."""
    before_each(monkeypatch, trace_export, "save", gate.go_through)


@pytest.mark.parametrize("ending", WITHOUT_THREAD, ids=str)
def test_a_trace_arrives_whole_and_alone(tmp_path: Path, ending: Ending, said: list[str]) -> None:
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tmp_path), ending)
    exporter.wait()
    assert files_below(tmp_path) == [TARGET]
    assert steps(tmp_path / TARGET) == 1
    assert said[0].startswith(
        "rank 0 writes the trace of iterations 3-4; the profiler's stop held training for 0 s"
    )
    assert said[-1].startswith(f"rank 0 wrote {tmp_path / TARGET}: ")


def test_training_is_not_held_while_the_child_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    saves_wait_at(gate, monkeypatch)
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tmp_path))
    exporter.poll()
    assert files_below(tmp_path) == [], "the child has not saved it, and we are here"
    gate.open()
    exporter.wait()
    assert files_below(tmp_path) == [TARGET]


def test_a_child_that_is_killed_costs_nothing_the_parent_saves_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], gate: Gate
) -> None:
    pids: list[int] = []
    fork = background.fork

    def remember(profiler: Any, export: Export) -> Any:
        child = fork(profiler, export)
        pids.append(child._pid)
        return child

    monkeypatch.setattr(background, "fork", remember)
    with monkeypatch.context() as slow:
        saves_wait_at(gate, slow)
        exporter = Exporter(MINUTES)
        hand_over(exporter, export_to(tmp_path))
    os.kill(pids[0], signal.SIGKILL)
    exporter.wait()
    assert steps(tmp_path / TARGET) == 1
    assert files_below(tmp_path) == [TARGET]
    assert (
        "rank 0: training itself saves the trace of iterations 3-4: the process that wrote it was "
        "killed by SIGKILL"
    ) in said


@pytest.mark.parametrize("crash", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
def test_a_child_that_crashes_is_not_followed_by_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], crash: signal.Signals
) -> None:
    # What ends the child would end training, were the trace saved from there instead.
    monkeypatch.setattr(trace_export, "save", lambda _, __: os.kill(os.getpid(), crash))
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tmp_path))
    exporter.wait()
    assert said[-1] == (
        "rank 0 could not write the trace of iterations 3-4: the process that wrote it crashed "
        f"({crash.name})"
    )


def test_a_child_that_hangs_is_ended_and_the_trace_saved_when_training_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(background, "_PROGRESS_SECONDS", 0.1)
    monkeypatch.setattr(background, "_STUCK_SECONDS", 0.3)
    with monkeypatch.context() as slow:
        before_each(slow, trace_export, "save", lambda: time.sleep(900))
        exporter = Exporter(MINUTES)
        hand_over(exporter, export_to(tmp_path))

    def is_ended() -> bool:
        exporter.poll()
        return any("has not moved" in line for line in said)

    assert until(is_ended)
    assert any("is still writing the trace of iterations 3-4" in line for line in said)
    assert files_below(tmp_path) == []
    # A busy machine may need longer than that for the second try.
    monkeypatch.setattr(background, "_STUCK_SECONDS", MINUTES)
    exporter.wait()
    assert steps(tmp_path / TARGET) == 1


def test_a_process_that_may_not_fork_saves_the_trace_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    def no_fork() -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "fork", no_fork)
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tmp_path))
    exporter.wait()
    assert said[0] == (
        "rank 0: training itself saves the trace of iterations 3-4: the system refuses to fork "
        "(Cannot allocate memory)"
    )
    assert steps(tmp_path / TARGET) == 1


def test_the_wait_at_the_end_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], gate: Gate
) -> None:
    saves_wait_at(gate, monkeypatch)
    exporter = Exporter(1)
    hand_over(exporter, export_to(tmp_path))
    exporter.wait()
    assert said[-1].startswith(
        "rank 0 gives up on the trace of iterations 3-4 after 1 s (--torch-profile-exit-timeout)"
    )


def test_cycles_back_to_back_while_the_first_child_still_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    saves_wait_at(gate, monkeypatch)
    exporter = Exporter(MINUTES)
    for cycle in range(3):
        hand_over(exporter, export_to(tmp_path / str(cycle)))
    assert exporter.in_flight == 3
    gate.open()
    exporter.wait()
    assert files_below(tmp_path) == [f"{cycle}/{TARGET}" for cycle in range(3)]


def test_a_window_that_is_called_off_waits_for_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    monkeypatch.setattr(background, "host_memory", lambda: HostMemory(1, 1))
    exporter = Exporter(MINUTES)
    exporter.last, exporter.last_iterations = Written("", 10**9, 1, 1, 0, 0), 1
    with monkeypatch.context() as slow:
        saves_wait_at(gate, slow)
        hand_over(exporter, export_to(tmp_path))
    exporter.make_room(lambda: True)
    assert exporter.in_flight == 1, "it did not wait until there was room"
    gate.open()
    exporter.wait()


def test_a_child_whose_parent_is_gone_ends_and_does_not_go_on_training(tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    parent = os.fork()
    if parent == 0:
        try:
            with suppress(BaseException):
                # None cannot be saved: the child answers that.
                child = writers.fork(None, export_to(tmp_path))
                if child._pid:
                    os._exit(0)
            reached.touch()
        finally:
            os._exit(0)
    os.waitpid(parent, 0)
    time.sleep(0.5)
    assert not reached.exists()


def test_a_child_that_somebody_else_reaped_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        exporter = Exporter(MINUTES)
        hand_over(exporter, export_to(tmp_path))
        exporter.wait()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert files_below(tmp_path) == [TARGET]


@pytest.mark.parametrize("ending", WITHOUT_THREAD, ids=str)
def test_an_export_lasts_until_its_file_is_finished_and_not_until_training_looks(
    tmp_path: Path, ending: Ending, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tmp_path), ending)
    (flight,) = exporter._flights
    while (ended := flight.process.poll()) is None:
        time.sleep(0.01)
    now = time.monotonic()
    assert flight.started <= ended["ended"] <= now
    # The next iteration ends, and training looks, an hour later.
    monkeypatch.setattr(flight.process, "poll", lambda: ended | {"ended": flight.started + 0.23})
    monkeypatch.setattr(time, "monotonic", lambda: now + 3600)
    exporter.poll()
    assert " events) in 230 ms; training was held for " in said[-1]


def test_in_a_hurry_the_trace_comes_first_and_artifacts_do_not(tmp_path: Path) -> None:
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tmp_path, key_averages=True, urgent=True))
    exporter.wait()
    assert files_below(tmp_path) == [TARGET]


def test_launches_without_any_kernel_are_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(
        trace_export, "save", lambda _, export: raw_trace(export.raw, LAUNCH, LAUNCH)
    )
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tmp_path))
    exporter.wait()
    assert said[-1].startswith("rank 0: the trace holds 2 kernel launches and no kernel")


def test_a_window_waits_for_memory_only_a_moment_and_no_trace_is_lost_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], gate: Gate
) -> None:
    monkeypatch.setattr(background, "_ROOM_SECONDS", 0.2)
    monkeypatch.setattr(background, "host_memory", lambda: HostMemory(10, 10))
    saves_wait_at(gate, monkeypatch)
    exporter = Exporter(MINUTES)
    exporter.last = Written("x", 100, 1, 1, 1, 1)
    hand_over(exporter, export_to(tmp_path))
    exporter.make_room(lambda: False)
    assert said[-1] == (
        "rank 0 waits up to 200 ms before its next window: the host has no memory for another "
        "trace until earlier traces are written"
    )
    assert exporter.in_flight == 1
    gate.open()
    exporter.wait()
    assert files_below(tmp_path) == [TARGET]


def test_the_next_traces_size_is_known_from_the_last(tmp_path: Path) -> None:
    exporter = Exporter(MINUTES)
    assert exporter.expected_mb(1) is None
    exporter.last = Written("x", 300_000_000, 1, 1, 1, 1)
    exporter.last_iterations = 3
    assert exporter.expected_mb(2) == 200.0


def test_a_fork_of_training_that_ends_does_not_wait_for_what_training_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    saves_wait_at(gate, monkeypatch)
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tmp_path))
    fork = os.fork()
    if fork == 0:
        with suppress(BaseException):
            exporter.wait()
        os._exit(exporter.in_flight)
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 1, "it left it in flight"
    gate.open()
    exporter.wait()
    assert files_below(tmp_path) == [TARGET]
