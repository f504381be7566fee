# SPDX-License-Identifier: Apache-2.0
"""Exports in flight: what happens to the trace when the disk or the folder fails."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from exports import (
    LAUNCH,
    TARGET,
    WITHOUT_THREAD,
    export_to,
    hand_over,
    profiled,
    raw_trace,
    steps,
)
from exports import no_process_left as no_process_left
from gates import MINUTES, Gate, before_each, until
from written_files import files_below

from megatron.torch_profile.export import background, disk, trace_export
from megatron.torch_profile.export.background import Exporter
from megatron.torch_profile.export.compression import check_whole
from megatron.torch_profile.export.endings import Ending
from megatron.torch_profile.export.trace_export import Export


@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
def test_with_a_scratch_folder_only_the_finished_file_reaches_the_target(
    tmp_path: Path, compression: str
) -> None:
    exporter = Exporter(MINUTES)
    export = export_to(tmp_path / "shared", scratch=tmp_path / "node", compression=compression)
    hand_over(exporter, export)
    exporter.wait()
    assert files_below(tmp_path) == [f"shared/iter-0000003-0000004/{export.name}"]


def test_a_folder_that_vanishes_while_the_child_writes_is_one_line(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save = trace_export.save

    def gone(profiler: Any, export: Export) -> int:
        shutil.rmtree(export.folder)
        return save(profiler, export)

    monkeypatch.setattr(trace_export, "save", gone)
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tmp_path))
    exporter.wait()
    assert said[-1].startswith("rank 0 could not write the trace of iterations 3-4: ")
    assert files_below(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, said: list[str]) -> None:
    (tmp_path / "file").touch()
    hand_over(Exporter(MINUTES), export_to(tmp_path / "file"))
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


@pytest.mark.parametrize("ending", WITHOUT_THREAD, ids=str)
@pytest.mark.parametrize(
    ("free_kib", "sentence", "left"),
    [
        (8, "the trace is cut short after 8.19 kB (is the disk full?)", ".json.tmp"),
        (12, "No space left on device; the raw trace is whole", "rank-0.pt.trace.json"),
    ],
)
def test_a_full_disk_is_one_line_and_what_there_is_stays(
    tiny_disk: Path,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    ending: Ending,
    free_kib: int,
    sentence: str,
    left: str,
) -> None:
    def three_pages(_: Any, export: Export) -> int:
        with suppress(OSError):  # as Kineto, which does not notice
            raw_trace(export.raw, LAUNCH + " " * (12_200 - len(LAUNCH)))
        return check_whole(export.raw)

    monkeypatch.setattr(trace_export, "save", three_pages)
    (tiny_disk / "ballast").write_bytes(bytes((64 - free_kib) << 10))
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tiny_disk), ending)
    exporter.wait()
    assert said[-1].startswith(f"rank 0 could not write the trace of iterations 3-4: {sentence}")
    (kept,) = (name for name in files_below(tiny_disk) if name != "ballast")
    assert kept.endswith(left)


@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT, errno.EACCES, errno.ESTALE])
def test_what_a_file_system_refuses_is_one_line_in_its_words(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(profiler: Any, export: Export) -> int:
        raise OSError(number, os.strerror(number), str(export.raw))

    monkeypatch.setattr(trace_export, "save", refused)
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tmp_path))
    exporter.wait()
    assert said[-1].startswith("rank 0 could not write the trace of iterations 3-4: ")
    assert os.strerror(number) in said[-1]
    assert files_below(tmp_path) == []


def test_a_scratch_folder_without_room_is_left_for_the_trace_folder(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage

    def full_node(folder: Path) -> Any:
        return usage(folder)._replace(free=7_000_000 if "node" in str(folder) else 10**12)

    monkeypatch.setattr(shutil, "disk_usage", full_node)
    exporter = Exporter(MINUTES)
    export = export_to(tmp_path / "run", scratch=tmp_path / "node")
    exporter.hand_over(profiled(), export, Ending.FORK, stop_seconds=0, expected_mb=100, writers=2)
    exporter.wait()
    assert steps(tmp_path / "run" / TARGET) == 1
    assert "2 traces of about 100 MB raw would take 220 MB" in said[0]
    assert said[0].endswith(
        f"7 MB free; the trace of iterations 3-4 is written in {export.folder} instead"
    )


def test_a_scratch_folder_that_cannot_be_made_is_left_for_the_trace_folder(
    tmp_path: Path, said: list[str]
) -> None:
    (tmp_path / "node").touch()
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tmp_path / "run", scratch=tmp_path / "node"))
    exporter.wait()
    assert steps(tmp_path / "run" / TARGET) == 1
    assert said[0].startswith(
        f"rank 0: --torch-profile-scratch-dir {tmp_path}/node: Not a directory; the trace of"
    )


def test_a_trace_that_cannot_fit_is_not_begun(tmp_path: Path, said: list[str]) -> None:
    exporter = Exporter(MINUTES)
    exporter.hand_over(
        profiled(), export_to(tmp_path), Ending.FORK, stop_seconds=0, expected_mb=1e9, writers=8
    )
    assert files_below(tmp_path) == []
    assert said[0].startswith(
        "rank 0 drops the trace of iterations 3-4: 8 traces of about 1,000 TB raw would take"
    )


def test_no_trace_passes_through_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "no such folder"))
    for ending in WITHOUT_THREAD:
        exporter = Exporter(MINUTES)
        hand_over(exporter, export_to(tmp_path / ending.name), ending)
        exporter.wait()
    assert files_below(tmp_path) == [f"FORK/{TARGET}", f"TRAINING/{TARGET}"]


@pytest.mark.parametrize(
    ("ending", "left"), [(Ending.FORK, [TARGET]), (Ending.TRAINING, [])], ids=str
)
def test_a_file_system_that_does_not_answer_holds_the_writer_and_not_training(
    tmp_path: Path,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    ending: Ending,
    left: list[str],
    gate: Gate,
) -> None:
    monkeypatch.setattr(disk, "_ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(disk, "prepared", lambda *_: gate.go_through())
    exporter = Exporter(MINUTES)
    # Whoever waits for the file system here waits for ever.
    hand_over(exporter, export_to(tmp_path), ending)
    gate.open()
    exporter.wait()
    assert files_below(tmp_path) == left
    assert said[0] == (
        f"rank 0: {export_to(tmp_path).folder} has not answered for 0 s; "
        "the trace of iterations 3-4 is "
        + ("written when the folder answers" if left else "dropped")
    )


def test_progress_is_not_asked_of_the_file_system(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    def write_and_wait() -> None:
        (tmp_path / "ballast").write_bytes(bytes(3_000_000))
        gate.go_through()

    before_each(monkeypatch, trace_export, "save", write_and_wait)
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tmp_path))
    (flight,) = exporter._flights
    assert until(lambda: gate.is_reached)
    with monkeypatch.context() as later:
        now = flight.started + background._PROGRESS_SECONDS + 1
        later.setattr(time, "monotonic", lambda: now)
        exporter.poll()
    assert said[-1] == (
        "rank 0 is still writing the trace of iterations 3-4: 3 MB on disk after 11 s"
    )
    gate.open()
    exporter.wait()


class CutShort:
    """What a stopped profiler holds, on a disk that takes three pages of it."""

    recorded = True

    def save(self, path: str) -> None:
        with suppress(OSError):  # as Kineto, which does not notice
            raw_trace(Path(path), LAUNCH + " " * (12_200 - len(LAUNCH)))

    def free(self) -> None:
        pass


def test_a_disk_that_is_full_while_a_thread_saves_is_one_line_too(
    tiny_disk: Path, said: list[str]
) -> None:
    (tiny_disk / "ballast").write_bytes(bytes(56 << 10))
    exporter = Exporter(MINUTES)
    exporter.end_beside(
        CutShort, export_to(tiny_disk), waited_seconds=0.0, expected_mb=0.0, writers=1
    )
    exporter.wait()
    assert said[-1].startswith(
        "rank 0 could not write the trace of iterations 3-4: the trace is cut short"
    )
    (kept,) = (name for name in files_below(tiny_disk) if name != "ballast")
    assert kept.endswith(".json.tmp")
