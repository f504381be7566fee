# SPDX-License-Identifier: Apache-2.0
"""The end of a window beside training: who stops the profiler, who waits for it, what is in it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from gates import Gate, until
from recordings import end, make, spans, train
from recordings import no_collections as no_collections
from recordings import signals as signals
from slow_stop import (
    TRACE,
    needs_stop_in_a_thread,
    saves_wait_at,
    stops_slowly,
    stops_wait_at,
)
from trace_builder import read
from written_files import files_below

from megatron.torch_profile.export import ending_thread
from megatron.torch_profile.export.late_events import WINDOW_END
from megatron.torch_profile.export.native_profiler import NativeProfiler, Result
from megatron.torch_profile.export.writers import Program
from megatron.torch_profile.record import kineto

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning"),
    needs_stop_in_a_thread,
]


def test_training_goes_on_while_the_profiler_stops_and_what_it_does_is_not_in_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], gate: Gate
) -> None:
    stops_wait_at(gate, monkeypatch)
    recorder = make(tmp_path)
    train(recorder, range(1, 10))
    assert recorder.exporter.in_flight == 1, "the profiler still runs, and training is here"
    gate.open()
    end(recorder)
    assert files_below(tmp_path) == [TRACE]
    path = tmp_path / TRACE
    assert spans(path, "ProfilerStep", "work of", WINDOW_END) == ["ProfilerStep#3", "work of 3"]
    assert any("the profiler stops beside training" in line for line in said)


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("flags", [{}, {"with_stack": True}, {"record_shapes": True}], ids=str)
def test_a_trace_holds_the_same_whoever_stops_the_profiler(
    tmp_path: Path, flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for mode in ("background", "sync"):
        recorder = make(tmp_path / mode, export=mode, **flags)
        train(recorder, range(1, 6))
        end(recorder)
        events = read(tmp_path / mode / TRACE)["traceEvents"]
        counts.append(
            sorted(e["name"] for e in events if e.get("cat") in ("cpu_op", "user_annotation"))
        )
    assert counts[0] == counts[1]


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("export", ["background", "sync"])
@pytest.mark.parametrize("flags", [{}, {"with_stack": True}, {"profile_memory": True}], ids=str)
def test_a_trace_holds_the_same_where_torch_makes_nothing_but_the_trace(
    tmp_path: Path, flags: dict[str, Any], export: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for only in (True, False):
        with monkeypatch.context() as meanwhile:
            if not only:
                meanwhile.setattr(kineto, "_has_trace_only", lambda: False)
            recorder = make(tmp_path / str(only), export=export, **flags)
            train(recorder, range(1, 6))
            end(recorder)
        events = read(tmp_path / str(only) / TRACE)["traceEvents"]
        wanted = ("cpu_op", "user_annotation", "cpu_instant_event")
        found.append(
            sorted((e["name"], *sorted(e["args"])) for e in events if e.get("cat") in wanted)
        )
    assert found[0] == found[1]


def test_a_users_profiler_waits_for_the_stop_and_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops_slowly(monkeypatch)
    recorder = make(tmp_path)
    train(recorder, range(1, 5))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        torch.ones(3).cumsum(0)
    assert any(event.key == "aten::cumsum" for event in own.key_averages())
    end(recorder)
    assert spans(tmp_path / TRACE, "ProfilerStep") == ["ProfilerStep#3"]


def test_a_users_profiler_after_the_end_of_training_waits_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops_slowly(monkeypatch)
    before = torch.autograd.profiler._prepare_profiler
    recorder = make(tmp_path, last=3)
    train(recorder, range(1, 4))
    recorder.close()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        torch.ones(3).cumsum(0)
    assert any(event.key == "aten::cumsum" for event in own.key_averages())
    recorder.exporter.wait()
    assert files_below(tmp_path) == [TRACE]
    assert torch.autograd.profiler._prepare_profiler is before


def test_a_fork_while_the_profiler_stops_ends_as_it_would_without_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    stops_wait_at(gate, monkeypatch)
    recorder = make(tmp_path)
    train(recorder, range(1, 5))
    child = os.fork()
    if child == 0:
        torch.ones(3).cumsum(0)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    gate.open()
    end(recorder)
    assert files_below(tmp_path) == [TRACE]


def test_the_end_waits_for_the_stop_however_short_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], gate: Gate
) -> None:
    saves_wait_at(gate, monkeypatch)
    happened: list[str] = []
    stop = NativeProfiler.stop

    def slow_stop(profiler: NativeProfiler) -> Result:
        until(lambda: any(line.startswith("rank 0 waits up to 100 ms") for line in said))
        time.sleep(0.3)  # longer than the bound
        happened.append("the profiler is stopped")
        return stop(profiler)

    monkeypatch.setattr(NativeProfiler, "stop", slow_stop)
    monkeypatch.setattr(ending_thread, "leave_without_destructors", lambda: happened.append("left"))
    recorder = make(tmp_path, exit_timeout=0.1)
    train(recorder, range(1, 5))
    given_up = recorder.exporter._flights[0].process
    end(recorder)
    assert happened == ["the profiler is stopped", "left"], "nothing is taken down under the thread"
    assert said[-1].startswith("rank 0 gives up on the trace of iteration 3 after 100 ms")
    # Here the process goes on, and the thread with it.
    gate.open()
    assert until(lambda: given_up.poll() is not None)


def test_a_process_that_compresses_and_is_killed_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    compressing = ending_thread.compressing
    killed: list[int] = []

    def kill_the_first(export: Any, *, drop_late: bool) -> Any:
        if killed:
            return compressing(export, drop_late=drop_late)
        program = Program(["sleep", "900"])
        killed.append(program.pid)
        program._process.kill()
        return program

    monkeypatch.setattr(ending_thread, "compressing", kill_the_first)
    recorder = make(tmp_path)
    train(recorder, range(1, 5))
    end(recorder)
    assert files_below(tmp_path) == [TRACE]
    assert (
        "rank 0: the process that compressed the trace of iteration 3 ended with status -9; "
        "another one does it"
    ) in said


def test_a_trace_that_nobody_can_compress_stays_raw_and_recover_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    def kill_all(export: Any, *, drop_late: bool) -> Any:
        program = Program(["sleep", "900"])
        program._process.kill()
        return program

    monkeypatch.setattr(ending_thread, "compressing", kill_all)
    recorder = make(tmp_path)
    train(recorder, range(1, 5))
    end(recorder)
    (raw,) = files_below(tmp_path)
    assert said[-1] == (
        "rank 0: the process that compressed the trace of iteration 3 ended with status -9; the "
        f"raw trace is {tmp_path / raw}"
    )
    os.utime(tmp_path / raw, (0, 0))  # what grew a moment ago is left alone: somebody may write it
    command = [sys.executable, "-m", "megatron.torch_trace", "recover", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    assert files_below(tmp_path) == [TRACE]
    assert spans(tmp_path / TRACE, "ProfilerStep") == ["ProfilerStep#3"]


def test_without_another_thread_training_stops_it_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = make(tmp_path)
    train(recorder, range(1, 4))
    with monkeypatch.context() as limited:
        # Threads that ask for a folder or stop a profiler cannot be had.
        def no_thread(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        limited.setattr(threading.Thread, "start", no_thread)
        recorder.begin_step(4)
    end(recorder)
    assert files_below(tmp_path) == [TRACE]


def test_memory_events_are_recorded_as_before(tmp_path: Path, said: list[str]) -> None:
    recorder = make(tmp_path, profile_memory=True)
    train(recorder, range(1, 6))
    end(recorder)
    assert any(e["name"] == "[memory]" for e in read(tmp_path / TRACE)["traceEvents"])
    assert sum("training is held while the profiler stops" in line for line in said) == 1


def test_no_thread_is_left(tmp_path: Path) -> None:
    def children() -> set[str]:
        found = subprocess.run(
            ["pgrep", "-P", str(os.getpid())], capture_output=True, text=True, check=False
        )
        return set(found.stdout.split())

    threads, processes = {*threading.enumerate()}, children()
    recorder = make(tmp_path, repeat=4)
    train(recorder, range(1, 12))
    end(recorder)

    def new() -> set[str]:
        return {one.name for one in threading.enumerate() if one not in threads}

    # Iteration times of earlier windows are written by threads that nobody waits for.
    until(lambda: "torch-profile-iterations" not in new())
    assert new() <= {"torch-profile-stop"}, "which lasts"
    assert children() <= processes
