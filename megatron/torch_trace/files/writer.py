# SPDX-License-Identifier: Apache-2.0
"""Writing files with good manners, and traces that every strict parser accepts.

A file appears under its name only when it is complete (see `files.atomic`). Whatever ends the work
early, Ctrl-C included, removes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.files.atomic import atomic_path
from megatron.torch_trace.wording import size

STDOUT = Path("-")
_SEPARATOR = b",\n  "
_HEADROOM_BYTES = 64 << 20


class OutputFile:
    """A file being written; `-` is standard output. Use as a context manager.

    Args:
        path: where the finished file shall be; `.gz` and `.zst` are compressed.
        force: replace an existing file.
        expected_bytes: refuse at once if the disk has less room than this; 0 for a page or
            a table, which needs less than what is asked of a disk for a trace.
        compressed: what will be written is compressed already, as the name says.
        named: the file that errors name instead, if this one is only a part of it.

    Raises:
        UsageError: the file exists and `force` is not set, or its folder does not exist.
        TorchTraceError: no room on the disk.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        force: bool = False,
        expected_bytes: int = 0,
        compressed: bool = False,
        named: Path | None = None,
    ) -> None:
        self.path = Path(path)
        self.compressed = compressed
        self._named = named or self.path
        self.written = 0
        self._force = force
        self._appearance = contextlib.ExitStack()
        self._raw: IO[bytes] | None = None
        self._sink: Any = None
        if self.path == STDOUT:
            return
        if self.path.is_dir():
            raise UsageError(f"{self.path}: is a folder; name the file to write.")
        if self.path.exists() and not self.path.is_file():
            raise UsageError(
                f"{self.path}: is a device or a pipe, which would be replaced; name a file, or - "
                "for standard output."
            )
        if os.path.lexists(self.path) and not force:
            raise UsageError(f"{self.path}: exists already; choose another name or pass --force.")
        folder = self.path.parent
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such folder; create it, or write to another folder.")
        import shutil

        free = shutil.disk_usage(folder).free
        needed = expected_bytes + _HEADROOM_BYTES
        if expected_bytes and needed > free:
            raise TorchTraceError(
                f"{folder}: has {size(free)} free, but {self.path.name} needs about "
                f"{size(needed)}; write it to another disk."
            )

    def __enter__(self) -> OutputFile:
        if self.path == STDOUT:
            self._sink = sys.stdout.buffer
            return self
        temporary = self._appearance.enter_context(atomic_path(self.path, replace=self._force))
        try:
            self._raw = temporary.open("wb")
        except OSError as error:
            self._appearance.pop_all()
            raise UsageError(f"{self.path}: cannot be written ({error.strerror}).") from error
        self._sink = self._raw if self.compressed else _compressor(self.path, self._raw)
        return self

    def write(self, data: bytes) -> None:
        """Append uncompressed bytes."""
        try:
            self._sink.write(data)
        except OSError as error:
            raise self._explained(error) from error
        self.written += len(data)

    def _explained(self, error: OSError) -> Exception:
        if isinstance(error, BrokenPipeError):
            return error
        if isinstance(error, FileExistsError):
            return UsageError(f"{self._named}: has appeared meanwhile and stays as it is.")
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            name = "standard output" if self.path == STDOUT else self._named
            after = f" after {size(self.written)}" if self.written else ""
            return TorchTraceError(f"{name}: the disk is full{after}; nothing was left behind.")
        return TorchTraceError(f"{self._named}: cannot be written ({error.strerror or error}).")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._raw is None:
            if self._sink is not None and kind is None:
                self._sink.flush()
            return
        try:
            with self._appearance:
                self._close(error)
        except OSError as failure:
            if failure is not error:
                raise self._explained(failure) from failure
        except BaseException as failure:
            if failure is not error:
                raise

    def _close(self, error: BaseException | None) -> None:
        """Write what is still held, or raise `error`; the files are closed either way."""
        assert self._raw is not None
        try:
            if error is not None:
                raise error
            if self._sink is not self._raw:
                self._sink.close()
            self._raw.close()
        finally:
            # After an error too, or a compressing thread would go on waiting. What they still
            # held fails once more where the disk is full.
            for file in (self._sink, self._raw):
                with contextlib.suppress(OSError, ValueError):
                    file.close()


def _compressor(path: Path, raw: IO[bytes]) -> Any:
    if path.suffix == ".gz":
        from isal import igzip_threaded

        # In a thread, beside what is written next. It puts no name and no time into the file: the
        # same input gives the same file.
        return igzip_threaded.open(raw, "wb", compresslevel=2, threads=1)
    if path.suffix == ".zst":
        import zstandard

        return zstandard.ZstdCompressor(level=3).stream_writer(raw, closefd=False)
    return raw


class TraceWriter:
    """Write one trace, in the layout of Kineto's own files: each event begins a line.

    Args:
        sink: where the text goes.
    """

    def __init__(self, sink: OutputFile) -> None:
        self._sink = sink
        self._written: dict[str, bytes] = {}
        self._any = False

    def begin(self, entries: dict[str, bytes]) -> None:
        """Write the header; `displayTimeUnit` is always `ms`."""
        self._written = {key: value for key, value in entries.items() if key != "traceEvents"} | {
            "displayTimeUnit": b'"ms"'
        }
        lines = [_entry(key, value) + b",\n" for key, value in self._written.items()]
        self._sink.write(b"{\n" + b"".join(lines) + b'  "traceEvents": [\n  ')

    def add(self, texts: Iterable[bytes]) -> None:
        """Write events, each a JSON object as text."""
        self.add_joined(_SEPARATOR.join(texts))

    def add_joined(self, text: bytes) -> None:
        """Write events that are joined by commas already; nothing if `text` is empty."""
        if text:
            if self._any:
                # By itself: put together they would be copied once more.
                self._sink.write(_SEPARATOR)
            self._sink.write(text)
            self._any = True

    def end(self, entries: dict[str, bytes]) -> None:
        """Write the tail: every entry that the header did not hold, or held differently."""
        rest = {
            key: value
            for key, value in entries.items()
            if key not in ("traceEvents", "displayTimeUnit") and self._written.get(key) != value
        }
        tail = b"".join(b",\n" + _entry(key, value) for key, value in rest.items())
        self._sink.write(b"\n  ]" + tail + b"\n}\n")


def join(texts: Iterable[bytes]) -> bytes:
    """Events as `TraceWriter.add_joined` wants them."""
    return _SEPARATOR.join(texts)


def _entry(key: str, value: bytes) -> bytes:
    import json

    return b"  " + json.dumps(key).encode() + b": " + value
