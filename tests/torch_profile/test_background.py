# SPDX-License-Identifier: Apache-2.0
"""Exports in flight: what happens to the trace when its writer, the disk or the folder fails."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron.torch_profile import background, export, writers
from megatron.torch_profile.background import Exporter
from megatron.torch_profile.compress import Written, check_whole
from megatron.torch_profile.export import Export
from megatron.torch_profile.host_memory import HostMemory
from megatron.torch_profile.schedule import Window
from megatron.torch_trace.layout import TraceName

WINDOW = Window(3, 4, 1)


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def profiled() -> Any:
    """A stopped profiler with a trace that is not saved yet."""
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    profiler.prepare_trace()
    profiler.start_trace()
    with torch.profiler.record_function("ProfilerStep#3"):
        torch.ones(4).sum()
    profiler.stop_trace()
    return profiler


def what(folder: Path, **options: Any) -> Export:
    name = TraceName(0, 1, options.pop("compression", "gzip"))
    return Export(0, WINDOW, (3, 4), folder / "iter-0000003-0000004", name, **options)


def hand_over(exporter: Exporter, where: Export) -> None:
    exporter.hand_over(profiled(), where, stop_seconds=0.0, expected_mb=0.0, writers=1)


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def steps(path: Path) -> int:
    trace = json.loads(gzip.decompress(path.read_bytes()))
    return sum(event.get("name") == "ProfilerStep#3" for event in trace["traceEvents"])


TARGET = "iter-0000003-0000004/rank-0.pt.trace.json.gz"


def slow_save(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every save takes so long, in whichever process."""
    save = export.save

    def slowly(profiler: Any, where: Export) -> int:
        time.sleep(seconds)
        return save(profiler, where)

    monkeypatch.setattr(export, "save", slowly)


@pytest.mark.parametrize("mode", ["background", "sync"])
def test_a_trace_arrives_whole_and_alone(tmp_path: Path, mode: str, said: list[str]) -> None:
    exporter = Exporter(mode, 60)
    hand_over(exporter, what(tmp_path))
    exporter.wait()
    assert names(tmp_path) == [TARGET]
    assert steps(tmp_path / TARGET) == 1
    assert said[0].startswith("rank 0 writes the trace of iterations 3-4; training was held 0.00 s")
    assert said[-1].startswith(f"rank 0 wrote {tmp_path / TARGET}: ")


def test_training_is_not_held_while_the_child_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_save(3.0, monkeypatch)
    exporter = Exporter("background", 60)
    hand_over(exporter, what(tmp_path))
    exporter.poll()
    assert names(tmp_path) == [], "the child still sleeps, and we are here"
    exporter.wait()
    assert names(tmp_path) == [TARGET]


def test_a_child_that_is_killed_costs_nothing_the_parent_saves_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    pids: list[int] = []
    fork = background.fork

    def remember(profiler: Any, where: Export) -> Any:
        child = fork(profiler, where)
        pids.append(child._pid)
        return child

    monkeypatch.setattr(background, "fork", remember)
    with monkeypatch.context() as slow:
        slow_save(60.0, slow)
        exporter = Exporter("background", 60)
        hand_over(exporter, what(tmp_path))
    os.kill(pids[0], signal.SIGKILL)
    exporter.wait()
    assert steps(tmp_path / TARGET) == 1
    assert names(tmp_path) == [TARGET]
    assert (
        "rank 0: the process that wrote the trace of iterations 3-4 was killed by SIGKILL; saving "
        "it again from training"
    ) in said


def test_a_child_that_hangs_is_ended_and_the_trace_saved_when_training_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(background, "_PROGRESS_SECONDS", 0.1)
    monkeypatch.setattr(background, "_STUCK_SECONDS", 0.3)
    with monkeypatch.context() as slow:
        slow_save(60.0, slow)
        exporter = Exporter("background", 60)
        hand_over(exporter, what(tmp_path))
    for _ in range(40):
        exporter.poll()
        time.sleep(0.05)
    assert any("has not moved" in line for line in said)
    assert any("still writes the trace of iterations 3-4" in line for line in said)
    assert names(tmp_path) == []
    exporter.wait()
    assert steps(tmp_path / TARGET) == 1


def test_a_process_that_may_not_fork_saves_the_trace_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    def no_fork() -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "fork", no_fork)
    exporter = Exporter("background", 60)
    hand_over(exporter, what(tmp_path))
    exporter.wait()
    assert said[0] == (
        "rank 0 cannot fork (Cannot allocate memory) and saves the trace from training instead"
    )
    assert steps(tmp_path / TARGET) == 1


def test_the_wait_at_the_end_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    slow_save(60.0, monkeypatch)
    exporter = Exporter("background", 1)
    hand_over(exporter, what(tmp_path))
    exporter.wait()
    assert said[-1].startswith(
        "rank 0 gives up on the trace of iterations 3-4 after 1 s (--torch-profile-exit-timeout)"
    )


def test_cycles_back_to_back_while_the_first_child_still_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_save(1.0, monkeypatch)
    exporter = Exporter("background", 60)
    for cycle in range(3):
        hand_over(exporter, what(tmp_path / str(cycle)))
    exporter.wait()
    assert names(tmp_path) == [f"{cycle}/{TARGET}" for cycle in range(3)]


@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
def test_with_a_scratch_folder_only_the_finished_file_reaches_the_target(
    tmp_path: Path, compression: str
) -> None:
    exporter = Exporter("background", 60)
    where = what(tmp_path / "shared", scratch=tmp_path / "node", compression=compression)
    hand_over(exporter, where)
    exporter.wait()
    assert names(tmp_path) == [f"shared/iter-0000003-0000004/{where.name}"]


def test_a_folder_that_vanishes_while_the_child_writes_is_one_line(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save = export.save

    def gone(profiler: Any, where: Export) -> int:
        shutil.rmtree(where.folder)
        return save(profiler, where)

    monkeypatch.setattr(export, "save", gone)
    exporter = Exporter("background", 60)
    hand_over(exporter, what(tmp_path))
    exporter.wait()
    assert said[-1].startswith("rank 0 could not write the trace of iterations 3-4: ")
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, said: list[str]) -> None:
    (tmp_path / "file").touch()
    hand_over(Exporter("background", 60), what(tmp_path / "file"))
    assert said == [
        "rank 0 could not write the trace of iterations 3-4: [Errno 20] Not a directory: "
        f"'{tmp_path}/file/iter-0000003-0000004'"
    ]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("mode", ["background", "sync"])
@pytest.mark.parametrize(
    ("free_kib", "sentence", "left"),
    [
        (8, "the trace is cut short after 0.0 MB (is the disk full?)", ".json.tmp"),
        (12, "No space left on device; the raw trace is whole", "rank-0.pt.trace.json"),
    ],
)
def test_a_full_disk_is_one_line_and_what_there_is_stays(
    tiny_disk: Path,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    free_kib: int,
    sentence: str,
    left: str,
) -> None:
    def three_pages(_: Any, where: Export) -> int:
        with suppress(OSError):  # as Kineto, which does not notice
            raw_trace(where.raw, LAUNCH + " " * (12_250 - len(LAUNCH)))
        return check_whole(where.raw)

    monkeypatch.setattr(export, "save", three_pages)
    (tiny_disk / "ballast").write_bytes(bytes((64 - free_kib) << 10))
    exporter = Exporter(mode, 60)
    hand_over(exporter, what(tiny_disk))
    exporter.wait()
    assert said[-1].startswith(f"rank 0 could not write the trace of iterations 3-4: {sentence}")
    (kept,) = (name for name in names(tiny_disk) if name != "ballast")
    assert kept.endswith(left)


@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT, errno.EACCES, errno.ESTALE])
def test_what_a_file_system_refuses_is_one_line_in_its_words(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(profiler: Any, where: Export) -> int:
        raise OSError(number, os.strerror(number), str(where.raw))

    monkeypatch.setattr(export, "save", refused)
    exporter = Exporter("background", 60)
    hand_over(exporter, what(tmp_path))
    exporter.wait()
    assert said[-1].startswith("rank 0 could not write the trace of iterations 3-4: ")
    assert os.strerror(number) in said[-1]
    assert names(tmp_path) == []


def test_a_scratch_folder_without_room_is_left_for_the_trace_folder(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage

    def full_node(folder: Path) -> Any:
        return usage(folder)._replace(free=7_000_000 if "node" in str(folder) else 10**12)

    monkeypatch.setattr(shutil, "disk_usage", full_node)
    exporter = Exporter("background", 60)
    where = what(tmp_path / "run", scratch=tmp_path / "node")
    exporter.hand_over(profiled(), where, stop_seconds=0, expected_mb=100, writers=2)
    exporter.wait()
    assert steps(tmp_path / "run" / TARGET) == 1
    assert "2 trace(s) of about 100 MB raw need 220 MB" in said[0]
    assert said[0].endswith(
        f"7 MB free; the trace of iterations 3-4 grows in {where.folder} instead"
    )


def test_a_scratch_folder_that_cannot_be_made_is_left_for_the_trace_folder(
    tmp_path: Path, said: list[str]
) -> None:
    (tmp_path / "node").touch()
    exporter = Exporter("background", 60)
    hand_over(exporter, what(tmp_path / "run", scratch=tmp_path / "node"))
    exporter.wait()
    assert steps(tmp_path / "run" / TARGET) == 1
    assert said[0].startswith(
        f"rank 0: --torch-profile-scratch-dir {tmp_path}/node: Not a directory; the trace of"
    )


def test_a_window_that_is_called_off_waits_for_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "host_memory", lambda: HostMemory(1, 1))
    exporter = Exporter("background", 60)
    exporter.last, exporter.last_iterations = Written("", 10**9, 1, 1, 0, 0), 1
    with monkeypatch.context() as slow:
        slow_save(1.0, slow)
        hand_over(exporter, what(tmp_path))
    exporter.make_room(lambda: True)
    assert exporter.in_flight == 1, "it did not wait until there was room"
    exporter.wait()


def test_a_child_whose_parent_is_gone_ends_and_does_not_go_on_training(tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    parent = os.fork()
    if parent == 0:
        try:
            with suppress(BaseException):
                child = writers.fork(None, what(tmp_path))  # None cannot be saved: it answers that
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
        exporter = Exporter("background", 60)
        hand_over(exporter, what(tmp_path))
        exporter.wait()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert names(tmp_path) == [TARGET]


def test_in_a_hurry_the_trace_comes_first_and_artifacts_do_not(tmp_path: Path) -> None:
    exporter = Exporter("background", 60)
    hand_over(exporter, what(tmp_path, key_averages=True, urgent=True))
    exporter.wait()
    assert names(tmp_path) == [TARGET]


def test_a_trace_that_cannot_fit_is_not_begun(tmp_path: Path, said: list[str]) -> None:
    exporter = Exporter("background", 60)
    exporter.hand_over(profiled(), what(tmp_path), stop_seconds=0, expected_mb=1e9, writers=8)
    assert names(tmp_path) == []
    assert said[0].startswith(
        "rank 0 drops the trace of iterations 3-4: 8 trace(s) of about 1000000000 MB raw need"
    )


def raw_trace(path: Path, *events: str) -> Path:
    path.write_text('{"traceEvents": [\n' + ",\n".join(events) + "\n]}\n")
    return path


LAUNCH = '{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel"}'
KERNEL = '{"ph": "X", "cat": "kernel", "name": "gemm"}'


def test_launches_without_any_kernel_are_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(export, "save", lambda _, where: raw_trace(where.raw, LAUNCH, LAUNCH))
    exporter = Exporter("background", 60)
    hand_over(exporter, what(tmp_path))
    exporter.wait()
    assert said[-1].startswith("rank 0: 2 kernel launches and not one kernel in the trace")


def test_a_window_waits_for_memory_only_a_moment_and_no_trace_is_lost_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(background, "_ROOM_SECONDS", 0.2)
    monkeypatch.setattr(background, "host_memory", lambda: HostMemory(10, 10))
    slow_save(1.5, monkeypatch)
    exporter = Exporter("background", 60)
    exporter.last = Written("x", 100, 1, 1, 1, 1)
    hand_over(exporter, what(tmp_path))
    exporter.make_room(lambda: False)
    assert said[-1] == "rank 0 has no memory for another trace yet"
    assert exporter.in_flight == 1
    exporter.wait()
    assert names(tmp_path) == [TARGET]


def test_the_next_traces_size_is_known_from_the_last(tmp_path: Path) -> None:
    exporter = Exporter("background", 60)
    assert exporter.expected_mb(1) is None
    exporter.last = Written("x", 300_000_000, 1, 1, 1, 1)
    exporter.last_iterations = 3
    assert exporter.expected_mb(2) == 200.0
