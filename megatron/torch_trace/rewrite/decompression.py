# SPDX-License-Identifier: Apache-2.0
"""`decompress`: the text of a trace as a plain file, mended where it would not parse."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from megatron.torch_trace.errors import StrictError, UsageError
from megatron.torch_trace.files.writer import OutputFile, TraceWriter
from megatron.torch_trace.reader import ByteStream, Damage
from megatron.torch_trace.reader.bytestream import PASSING_PIECE

_DOCUMENT_ENDS = re.compile(rb"[}\]][\s\0]*\Z")
_DOCUMENT_BEGINS = re.compile(rb'\s*(?:\{\s*"|\[\s*\{)')

OnRead = Callable[[int], None]

BLANKS = b" \t\r\n\0\xef\xbb\xbf"
MOST_BLANKS = 1 << 20
BEGINS_BLANK = "nothing but blanks and zeros at its beginning"
"""Said of a stream without an end, such as /dev/zero, before it has filled the disk."""


@dataclass(slots=True)
class DecompressResult:
    """What was written.

    Attributes:
        raw_bytes: bytes of text that the input held.
        written_bytes: bytes written; the same unless something had to be repaired.
        repaired: the text was read event by event and written anew.
        is_trace: False of a text without a trace in it, of which nothing can be mended.
        damage: what was wrong.
    """

    raw_bytes: int = 0
    written_bytes: int = 0
    repaired: bool = False
    is_trace: bool = True
    damage: Damage = field(default_factory=Damage)


def decompress(
    path: Path | str,
    output: Path | str,
    *,
    force: bool = False,
    strict: bool = False,
    repair: bool = False,
    workers: int = 1,
    on_read: OnRead | None = None,
) -> DecompressResult:
    """Write a trace uncompressed, byte for byte; if it is visibly damaged, what can be saved of it.

    Visibly damaged is: cut, corrupt, or not UTF-8. What else strict parsers refuse (`inf`, quotes
    in names) only `repair` finds, because it looks at every event.

    Args:
        path: gzip, zstd, or plain.
        output: file to write; `-` is standard output.
        repair: look at every event, at the price of speed.
        workers: processes for repairing.
    """
    expected = 0 if str(path) == "-" else estimated_raw_bytes(Path(path))
    if not repair:
        copy = OutputFile(output, force=force, expected_bytes=expected)
        result = _copy(path, copy, on_read, strict=strict)
        if result is not None:
            return result
        if strict:
            raise StrictError(f"{path}: damaged; `torch-trace check` lists every fault.")
    from megatron.torch_trace.reader import NotATraceError

    sink = OutputFile(output, force=force, expected_bytes=expected)
    try:
        return _rewrite(path, sink, strict, workers, on_read)
    except NotATraceError:
        # Not a trace, so there is nothing to mend: hand out the bytes there are.
        result = _copy(path, sink, on_read, whatever=True)
        assert result is not None
        result.is_trace = False
        return result


class _DamagedError(Exception):
    """Leaves the output's context so that the file is not kept."""


def _copy(
    path: Path | str,
    sink: OutputFile,
    on_read: OnRead | None,
    *,
    whatever: bool = False,
    strict: bool = False,
) -> DecompressResult | None:
    """The plain way; None if the text is damaged and must be read event by event."""
    stream = ByteStream(path, on_read, piece_bytes=PASSING_PIECE)
    pieces: Iterable[bytes] = stream
    if "-" not in (str(sink.path), str(path)):
        # From files only: a thread that waits for standard input could not be stopped.
        from megatron.torch_trace.reader.ahead import ahead

        pieces = ahead(stream)
    decoder = codecs.getincrementaldecoder("utf-8")()
    last = b""
    position = 0
    # Standard input can be read only once, and what is on standard output is gone.
    once = whatever or str(path) == "-" or str(sink.path) == "-"
    damage, behind = Damage(), Damage()
    is_blank = True
    try:
        with sink:
            for piece in pieces:
                if is_blank and (is_blank := not piece.strip(BLANKS)) and position > MOST_BLANKS:
                    raise UsageError(f"{path}: no trace: {BEGINS_BLANK}.")
                if not damage and not _is_utf8(piece, decoder):
                    damage.add("not_utf8_kept", position)
                    if not once:
                        raise _DamagedError
                if _DOCUMENT_ENDS.search(last) and _DOCUMENT_BEGINS.match(piece):
                    # Members of gzip and frames of zstd begin with a piece, so another writer's
                    # document is seen. Copied, it is not lost.
                    behind.add("second_document_kept", position)
                    if strict and not once:
                        raise _DamagedError
                sink.write(piece)
                position += len(piece)
                last = (last + piece[-64:])[-64:]
            if last.rstrip(b" \t\r\n\0")[-1:] not in (b"}", b"]"):
                damage.add("truncated", stream.produced)
            damage.include(stream.damage)
            if damage and not once:
                raise _DamagedError
    except _DamagedError:
        return None
    damage.include(behind)
    return DecompressResult(stream.produced, sink.written, damage=damage)


def _is_utf8(piece: bytes, decoder: codecs.IncrementalDecoder) -> bool:
    # A character may be cut at the end of a piece: the decoder remembers its first bytes.
    if piece.isascii() and not decoder.getstate()[0]:
        return True
    try:
        decoder.decode(piece)
    except UnicodeDecodeError:
        return False
    return True


def _rewrite(
    path: Path | str, sink: OutputFile, strict: bool, workers: int, on_read: OnRead | None
) -> DecompressResult:
    from megatron.torch_trace.reader import SlimEvent, Trace

    trace = Trace(path, strict=strict, on_read=on_read)
    trace.read_header()
    with sink:
        writer = TraceWriter(sink)
        writer.begin(trace.metadata.entries)
        for text in trace.map(_joined, SlimEvent, workers=workers):
            writer.add_joined(text)
        writer.end(trace.metadata.entries)
    return DecompressResult(trace.raw_bytes, sink.written, repaired=True, damage=trace.damage)


def _joined(block: object) -> bytes:
    from megatron.torch_trace.files.writer import join
    from megatron.torch_trace.reader import EventBlock

    assert isinstance(block, EventBlock)
    return block.text.strip() if block.text is not None else join(block.texts)


def estimated_raw_bytes(path: Path) -> int:
    """About how much text a file holds; gzip remembers it modulo 4 GiB, traces compress 12 to 1."""
    size = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
        if magic.startswith(b"\x1f\x8b") and size > 18:
            file.seek(-4, 2)
            stored = int.from_bytes(file.read(4), "little")
            return stored if stored >= size else size * 12
    return size * 12 if magic == b"\x28\xb5\x2f\xfd" else size
