# SPDX-License-Identifier: Apache-2.0
"""A file as uncompressed bytes: plain, gzip of any number of members, or zstd, told by content.

A stream that is cut or corrupt ends early and says so in `damage`; it never raises for that.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.reader.damage import Damage

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

_INPUT_BYTES = 1 << 16
_BLOCK_PIECE = 1 << 20
"""As long as a block of events: shorter pieces are put together at the cost of a third more."""
PASSING_PIECE = 120 << 10
"""For bytes that are only passed on. Below malloc's threshold for mapping: larger pieces cost as
much in page faults as to unpack."""
_LARGEST_PIECE = 1 << 23
_ZSTD_BITE = 1 << 10
"""Four bytes of zstd can stand for 128 KiB, and its library hands out all that a bite holds."""


class ByteStream:
    """Iterate over the uncompressed bytes of `path` in pieces of at most 8 MiB.

    Args:
        path: a file, or `-` for standard input.
        on_read: called with the number of bytes of each piece read from the file.
        piece_bytes: largest piece that gzip is unpacked to.

    Attributes:
        compression: `gzip`, `zstd` or `none`; known after the first piece.
        consumed: bytes of the file read so far, for progress.
        produced: uncompressed bytes handed out so far.
        damage: what was wrong with the compressed stream.
    """

    def __init__(
        self,
        path: Path | str,
        on_read: Callable[[int], None] | None = None,
        *,
        piece_bytes: int = _BLOCK_PIECE,
    ) -> None:
        self.path = Path(path)
        self.compression = "none"
        self.consumed = 0
        self.produced = 0
        self.damage = Damage()
        self._on_read = on_read
        self._piece_bytes = piece_bytes

    @property
    def size(self) -> int | None:
        """Bytes of the file as it lies on disk; None for standard input."""
        return None if str(self.path) == "-" else self.path.stat().st_size

    def __iter__(self) -> Iterator[bytes]:
        if str(self.path) == "-":
            yield from self._pieces(sys.stdin.buffer)
            return
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be read ({error.strerror}).") from error
        with file:
            yield from self._pieces(file)

    def _pieces(self, file: IO[bytes]) -> Iterator[bytes]:
        first = self._read(file)
        if first.startswith(GZIP_MAGIC):
            self.compression = "gzip"
            pieces = self._gzip(file, first)
        elif first.startswith(ZSTD_MAGIC):
            self.compression = "zstd"
            pieces = self._zstd(file, first)
        else:
            pieces = self._plain(file, first)
        for piece in pieces:
            self.produced += len(piece)
            yield piece

    def _read(self, file: IO[bytes], size: int = _INPUT_BYTES) -> bytes:
        piece = file.read(size)
        self.consumed += len(piece)
        if self._on_read:
            self._on_read(len(piece))
        return piece

    def _plain(self, file: IO[bytes], piece: bytes) -> Iterator[bytes]:
        while piece:
            yield piece
            piece = self._read(file, 1 << 20)

    def _gzip(self, file: IO[bytes], piece: bytes) -> Iterator[bytes]:
        from isal import igzip_lib

        broken: Any = igzip_lib.IsalError

        while True:
            piece = self._behind_padding(file, piece)
            if not piece:
                return
            if not _may_be_gzip(piece):
                self.damage.add("corrupt_stream", self.produced)
                return
            member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
            while not member.eof:
                if not piece and member.needs_input:
                    piece = self._read(file)
                    if not piece:
                        self.damage.add("truncated_stream", self.produced)
                        return
                try:
                    output = member.decompress(piece, self._piece_bytes)
                except broken:
                    self.damage.add("corrupt_stream", self.produced)
                    yield from self._gzip_up_to_fault()
                    return
                piece = b""
                if output:
                    yield output
            piece = member.unused_data

    def _behind_padding(self, file: IO[bytes], piece: bytes) -> bytes:
        """The first piece of the next member: some writers pad with zeros (tapes, mgzip)."""
        piece = piece.lstrip(b"\0")
        while not piece:
            piece = self._read(file)
            if not piece:
                break
            piece = piece.lstrip(b"\0")
        return piece

    def _gzip_up_to_fault(self) -> Iterator[bytes]:
        """What lies between the last whole piece and the fault, which igzip does not hand out.

        Reads the file once more, with zlib. Slow, but only ever for a corrupt file.
        """
        if str(self.path) == "-":
            return
        skip = self.produced
        for output in _until_fault(self.path):
            if len(output) > skip:
                yield output[skip:]
            skip = max(0, skip - len(output))

    def _zstd(self, file: IO[bytes], piece: bytes) -> Iterator[bytes]:
        import zstandard

        while True:
            piece = self._behind_padding(file, piece)
            if not piece:
                return
            frame = zstandard.ZstdDecompressor().decompressobj()
            outputs: list[bytes] = []
            gathered = 0
            while not frame.eof:
                if not piece:
                    piece = self._read(file)
                    if not piece:
                        if gathered:
                            yield b"".join(outputs)
                        self.damage.add("truncated_stream", self.produced)
                        return
                try:
                    output = frame.decompress(piece[:_ZSTD_BITE])
                except zstandard.ZstdError:
                    if gathered:
                        yield b"".join(outputs)
                    self.damage.add("corrupt_stream", self.produced)
                    return
                piece = piece[_ZSTD_BITE:]
                outputs.append(output)
                gathered += len(output)
                if gathered >= self._piece_bytes or frame.eof:
                    joined = b"".join(outputs)
                    outputs, gathered = [], 0
                    for start in range(0, len(joined), _LARGEST_PIECE):
                        yield joined[start : start + _LARGEST_PIECE]
            piece = frame.unused_data + piece


def _may_be_gzip(piece: bytes) -> bool:
    """Whether a member can begin here; one byte alone cannot tell."""
    return GZIP_MAGIC.startswith(piece[:2])


def _until_fault(path: Path) -> Iterator[bytes]:
    import zlib

    with path.open("rb") as file:
        member = zlib.decompressobj(wbits=31)
        while bite := file.read(4096):
            while bite:
                before = member.copy()
                try:
                    output = member.decompress(bite)
                except zlib.error:
                    yield _byte_by_byte(before, bite)
                    return
                yield output
                bite = member.unused_data.lstrip(b"\0")
                if member.eof:
                    member = zlib.decompressobj(wbits=31)


def _byte_by_byte(member: Any, bite: bytes) -> bytes:
    """The output of `bite` up to the byte at which `member` fails."""
    import zlib

    output = bytearray()
    with contextlib.suppress(zlib.error):
        for position in range(len(bite)):
            output += member.decompress(bite[position : position + 1])
    return bytes(output)
