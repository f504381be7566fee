# SPDX-License-Identifier: Apache-2.0
"""A raw trace becomes the final file in one streaming pass, and is looked at on the way.

Also a program, so that `--torch-profile-export sync` can compress in a process that shares nothing
with training:

    python -m megatron.torch_profile.export.compression RAW TARGET {gzip,zstd,none} [drop-late]
        [draw-backward]

zlib-ng at level 5 writes about the size of torch's own gzip (level 9), ten times as fast; isal
would be four times faster still, and its files half as large again (benchmarks/compression.py).
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from megatron.torch_profile.export.late_events import window_end, without_late
from megatron.torch_profile.export.own_process import (
    be_killed_first,
    leave_at_once,
    start_no_threads,
)
from megatron.torch_trace import wording
from megatron.torch_trace.errors import TorchTraceError
from megatron.torch_trace.files.atomic import finish
from megatron.torch_trace.format.file_names import DESTINATION_FILE, UnfinishedName
from megatron.torch_trace.rewrite.backward_spans.pieces import Counts, Piece
from megatron.torch_trace.rewrite.backward_spans.stream import with_backward_spans

DROP_LATE, DRAW_BACKWARD = "drop-late", "draw-backward"
"""Words of the program; see `compress`."""
_CHUNK = 1 << 21
_KEPT = 24 << 20
_OVERLAP = 64


@dataclass(frozen=True, slots=True)
class Written:
    """A finished trace.

    Args:
        path: where it is.
        raw_bytes: size of the JSON text, without what was dropped.
        file_bytes: size on disk.
        events: slices, marks and arrows in it.
        kernels: GPU kernels.
        launches: calls that launched a kernel, by name.
        undrawn: why backward spans of modules could not be drawn; None where they were.
        ended: when it was finished, by the clock of `time.monotonic()`, which all processes of a
            host share; training learns of it later, when it looks.
    """

    path: str
    raw_bytes: int
    file_bytes: int
    events: int
    kernels: int
    launches: int
    undrawn: str | None = None
    ended: float = field(default_factory=time.monotonic)


class CutShortError(TorchTraceError):
    """A raw trace lacks its end."""


def check_whole(raw: Path) -> int:
    """Size of a JSON document in bytes, refused if it does not begin and end as one.

    Kineto can report success and leave an empty file (pytorch/pytorch#167707), and it does not
    notice a full disk.

    Raises:
        CutShortError: the file is cut short.
        TorchTraceError: there is none.
    """
    try:
        size = raw.stat().st_size
    except FileNotFoundError as error:
        raise TorchTraceError(
            f"the profiler wrote no file (are there too many open files?): {raw}"
        ) from error
    with raw.open("rb") as file:
        head = file.read(16).lstrip()
        file.seek(max(0, size - 16))
        tail = file.read().rstrip()
    if not head.startswith(b"{") or not tail.endswith(b"}"):
        raise CutShortError(
            f"the trace is cut short after {wording.size(size)} (is the disk full?); what there is "
            f"was left in {raw}"
        )
    return size


def compress(
    raw: Path,
    target: Path,
    compression: str,
    *,
    drop_late: bool = False,
    draw_backward: bool = False,
) -> Written:
    """Stream a whole raw trace into `target`, which gets its name only when complete; drop raw.

    Where raw lies in another folder (a scratch folder of the node), the compressed file grows
    there too and is copied when it is complete: a shared file system sees the small file only.

    Args:
        compression: gzip, zstd or none.
        drop_late: drop what was recorded after the mark of the window's end.
        draw_backward: add the backward spans of modules.

    Raises:
        TorchTraceError: the target could not be written. The raw trace, which is whole, stays
            under the target's name without the compression's suffix, or where it is if that is on
            another disk; the message names it.
            Or the raw trace is cut short, or the target exists.
    """
    check_whole(raw)
    if target.exists():
        raise _exists(target, raw)
    unfinished = str(UnfinishedName(target.name, os.getpid(), raw=False))
    late = window_end(raw) if drop_late else None
    as_it_is = compression == "none" and late is None and not draw_backward
    grown = raw if as_it_is else raw.with_name(unfinished)
    arriving = target.with_name(unfinished)
    failures: list[Exception] = []
    _keep_freed_memory()
    try:
        with raw.open("rb") as source, _writer(compression, grown, raw) as sink:
            blocks: Iterable[bytes] = _blocks(source)
            if late:
                blocks = without_late(blocks, late)
            pieces: Iterable[Piece] = map(Piece, blocks)
            if draw_backward:
                pieces = with_backward_spans(blocks, failures.append)
            raw_bytes, counts = _copy_and_count(pieces, sink)
        if grown.parent == target.parent:
            arriving = grown
        else:
            shutil.copyfile(grown, arriving)
        finish(arriving, target)
    except FileExistsError as error:  # another job has written it meanwhile
        raise _exists(target, raw) from error
    except OSError as error:
        kept = raw
        if raw.parent == target.parent:
            kept = target.with_name(target.name.partition(".json")[0] + ".json")
            try:
                finish(raw, kept)
                raw.unlink()
            except OSError:
                kept = raw
        raise TorchTraceError(f"{error.strerror}; the raw trace is whole, in {kept}") from error
    finally:
        for path in {arriving, grown} - {raw}:
            with suppress(OSError):
                path.unlink(missing_ok=True)
    raw.unlink(missing_ok=True)
    if raw.parent != target.parent:
        with suppress(OSError):
            (raw.parent / DESTINATION_FILE).unlink(missing_ok=True)
            raw.parent.rmdir()
    undrawn = f"{type(failures[0]).__name__}: {failures[0]}" if failures else None
    return Written(
        path=str(target),
        raw_bytes=raw_bytes,
        file_bytes=target.stat().st_size,
        undrawn=undrawn,
        **asdict(counts),
    )


def _exists(target: Path, raw: Path) -> TorchTraceError:
    return TorchTraceError(f"{target} exists, and traces are never overwritten; see {raw}")


def _blocks(source: IO[bytes]) -> Iterator[bytes]:
    while block := source.read(_CHUNK):
        yield block


def _keep_freed_memory() -> None:
    """Have glibc keep blocks that are freed for the next ones.

    It gives memory of this size back to the system, and gets it again page by page, until it has
    seen that a larger piece was freed (mallopt(3), M_MMAP_THRESHOLD).
    """
    bytes(_KEPT)


def _copy_and_count(pieces: Iterable[Piece], sink: IO[bytes] | None) -> tuple[int, Counts]:
    """How many bytes there were, and what was in them."""
    raw_bytes, counts, tail = 0, Counts(), b""
    for piece in pieces:
        raw_bytes += len(piece.text)
        if piece.counts is not None:
            counts.add(piece.counts)
            tail = b""
        else:
            # A mark may straddle two blocks: count with the last bytes before, less what they hold.
            seen = tail + piece.text
            counts.add(Counts.of(seen))
            counts.add(Counts.of(tail), -1)
            tail = seen[-_OVERLAP:]
        if sink is not None:
            sink.write(piece.text)
    return raw_bytes, counts


def _gzip(path: Path) -> IO[bytes]:
    from zlib_ng import gzip_ng

    writer: IO[bytes] = gzip_ng.open(path, "wb", compresslevel=5)
    return writer


def _zstd(path: Path) -> IO[bytes]:
    import zstandard

    writer: IO[bytes] = zstandard.open(path, "wb", cctx=zstandard.ZstdCompressor(level=3))
    return writer


def _plain(path: Path) -> IO[bytes]:
    return path.open("wb")


_WRITERS: dict[str, Callable[[Path], IO[bytes]]] = {"gzip": _gzip, "zstd": _zstd, "none": _plain}


def _writer(
    compression: str, grown: Path, raw: Path
) -> AbstractContextManager[IO[bytes]] | AbstractContextManager[None]:
    """Of the file that grows; of none, where the raw trace itself will be the file."""
    return nullcontext() if grown == raw else _WRITERS[compression](grown)


def keep_whole_events(raw: Path, target: Path) -> str:
    """Of a raw trace that is cut short, the events that are whole, as a partial trace; where.

    Raises:
        OSError, TorchTraceError: they cannot be written either; the raw trace stays.
    """
    from megatron.torch_trace.rewrite.recovery import Unfinished, recover

    kept = recover(Unfinished((raw,), target)).target
    raw.unlink()
    return f"the trace is cut short; the events that are whole are in {kept}"


def main(argv: list[str]) -> None:
    """Compress one file and print what was written as JSON; an error as JSON too, status 1."""
    raw, target, (compression, *wanted) = Path(argv[0]), Path(argv[1]), argv[2:]
    os.nice(10)
    try:
        written = compress(
            raw,
            target,
            compression,
            drop_late=DROP_LATE in wanted,
            draw_backward=DRAW_BACKWARD in wanted,
        )
        print(json.dumps(asdict(written)))
    except CutShortError as error:
        said = str(error)
        with suppress(OSError, TorchTraceError):
            said = keep_whole_events(raw, target)
        print(json.dumps({"error": said}))
        sys.exit(1)
    except (OSError, TorchTraceError) as error:
        print(json.dumps({"error": str(error)}))
        sys.exit(1)


if __name__ == "__main__":
    be_killed_first()
    start_no_threads()
    # Nothing here has cycles, and looking for some takes a fourth of the time of imports.
    gc.disable()
    main(sys.argv[1:])
    leave_at_once()
