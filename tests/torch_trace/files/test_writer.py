# SPDX-License-Identifier: Apache-2.0
"""Files that are being written: complete or not there, whatever the disk does."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import threading
from pathlib import Path
from typing import IO, Any

import pytest
import zstandard

from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.files.writer import OutputFile

ENDINGS = ["json", "json.gz", "json.zst"]
NOISE = [os.urandom(1 << 20) for _ in range(8)]


def write_noise(path: Path) -> None:
    with OutputFile(path) as sink:
        for piece in NOISE:
            sink.write(piece)


class FullDisk(io.RawIOBase):
    """Takes `room` bytes, then says what a full disk says."""

    def __init__(self, room: int) -> None:
        self.room = room

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(data)
        return len(data)


@pytest.fixture(params=[0, 1 << 16, 3 << 20])
def full_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with room for nothing, for a little, for some pieces."""

    def opened(path: Path, mode: str) -> IO[bytes]:
        path.touch()
        return io.BufferedWriter(FullDisk(request.param), 1 << 13)

    monkeypatch.setattr(Path, "open", opened)


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_disk_that_fills_up_leaves_nothing_and_says_so(tmp_path: Path, ending: str) -> None:
    threads = threading.active_count()
    with pytest.raises(
        TorchTraceError, match=rf"out\.{ending}: the disk is full( after \d\.\d+ MB)?;"
    ):
        write_noise(tmp_path / f"out.{ending}")
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == threads


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_error_of_the_writer_leaves_nothing(tmp_path: Path, ending: str) -> None:
    threads = threading.active_count()
    sink = OutputFile(tmp_path / f"out.{ending}")
    with contextlib.suppress(ZeroDivisionError), sink:
        sink.write(NOISE[0])
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == threads


def test_a_pipe_or_a_device_is_not_replaced_whoever_asks(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="pipe: is a device or a pipe"):
        OutputFile(pipe, force=True)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_finished_file_holds_what_was_written_and_is_the_same_each_time(
    tmp_path: Path, ending: str
) -> None:
    for name in ("a", "b"):
        write_noise(tmp_path / f"{name}.{ending}")
    first, second = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("a", "b"))
    assert first == second
    unpacked = {
        "json": lambda data: data,
        "json.gz": gzip.decompress,
        "json.zst": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
    }[ending](first)
    assert unpacked == b"".join(NOISE)
