# SPDX-License-Identifier: Apache-2.0
"""The analysis of one rank kept beside its trace, so that no one need read the trace again.

A Parquet file for each rank: its columns are the rank's collective calls, which other ranks need
to see; the metadata holds the tables of its own analysis and the table of `kind` codes as JSON,
which every reader of Parquet can show. It belongs to one trace, told by size and checksum and not
by its time, so that both can be copied; and to the fields that results have now, so that one of
another version is never mistaken. A checksum of what it holds tells bytes that a disk has changed.
"""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np

from megatron.torch_trace.analysis.communication.collectives import CollectiveKind
from megatron.torch_trace.analysis.communication.rank_calls import RankCalls
from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.analysis.run.rank import RankOutcome
from megatron.torch_trace.columns.intervals import Ints
from megatron.torch_trace.errors import TorchTraceError
from megatron.torch_trace.files.atomic import atomic_path
from megatron.torch_trace.files.parquet import columns_of, columns_of_several, write_parquet
from megatron.torch_trace.format.file_names import WindowName, kept_analysis_of
from megatron.torch_trace.version import __version__
from megatron.torch_trace.wording import path_text

_VERSION, _HEADER, _RESULT, _KINDS, _CHECKSUM = (
    f"torch_trace.{name}" for name in ("version", "partial", "result", "kinds", "crc32")
)
_KEYS = frozenset({_VERSION, _HEADER, _RESULT, _KINDS, "ARROW:schema"})
"""Of files without a checksum, as they were written before there was one."""
_REVISION = 3
"""Raised when the same fields come to mean something else within a version of the package."""
_EDGE_BYTES = 1 << 14
_TIMES, _SMALL, _NUMBERS = ("start", "end"), ("kind", "step"), ("bytes", "elements", "seq")
_COLUMNS = (*_TIMES, *_SMALL, *_NUMBERS)
_MOST = (1 << 31) - 1


class UnusableError(TorchTraceError):
    """A kept analysis that must not stand in for its trace; the text is why, in a word or two."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which trace it is, at the price of two small reads: also after it was copied.

    Args:
        name: of the file.
        size: in bytes.
        head, tail: CRC-32 of its first and last 16 KiB. In the last lies gzip's own checksum of
            the whole.
    """

    name: str
    size: int
    head: int
    tail: int


def identify(trace: Path) -> Identity:
    """The identity of a trace.

    Raises:
        OSError: it cannot be read.
    """
    with trace.open("rb") as file:
        head = zlib.crc32(file.read(_EDGE_BYTES))
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _EDGE_BYTES))
        return Identity(trace.name, size, head, zlib.crc32(file.read()))


@dataclass(frozen=True, slots=True)
class Header:
    """What a kept analysis is of.

    Args:
        trace: of which trace.
        run: name of the run's folder by the trace's own word; None if it has none.
        window: name of the window's folder; None if the trace lay in another.
        rank: as in `RankOutcome`.
    """

    trace: Identity
    run: str | None
    window: str | None
    rank: int | None


@dataclass(frozen=True, slots=True)
class KeptAnalysis:
    """What a kept analysis holds: whose it is, and the outcome; `file` is the trace's name."""

    header: Header
    outcome: RankOutcome


@cache
def version() -> str:
    """Package version, and a hash of every field that a kept analysis can hold."""
    from hashlib import sha256

    fields = sorted(f"{kind.__qualname__}: {kind.__annotations__}" for kind in nested(RankOutcome))
    digest = sha256("\n".join([*fields, str(_COLUMNS)]).encode()).hexdigest()
    return f"{__version__}+{_REVISION}.{digest[:16]}"


def nested(kind: Any) -> set[type]:
    """A dataclass and all dataclasses that its fields may hold, at any depth."""
    found: set[type] = set()
    waiting = [kind]
    while waiting:
        one = waiting.pop()
        waiting += get_args(one)
        if isinstance(one, type) and dataclasses.is_dataclass(one) and one not in found:
            found.add(one)
            waiting += get_type_hints(one).values()
    return found


def write(outcome: RankOutcome, trace: Path, of: Identity) -> Path:
    """Keep an outcome beside its trace.

    Args:
        outcome: of the whole window.
        trace: what was analysed.
        of: its identity before it was read.

    Raises:
        UnusableError: the trace has changed since.
        OSError: the file could not be written.
    """
    import polars as pl

    if identify(trace) != of:
        raise UnusableError("the trace changed while it was read")
    calls = outcome.calls
    window = trace.absolute().parent.name
    header = Header(of, outcome.run, window if WindowName.parse(window) else None, outcome.rank)
    target = kept_analysis_of(trace)
    target.parent.mkdir(exist_ok=True)
    with atomic_path(target) as temporary:
        frame = pl.DataFrame({name: getattr(calls, name) for name in _COLUMNS})
        # The same types on every rank, so that all of them can be read as one table.
        frame = frame.cast(dict.fromkeys(_SMALL, pl.Int32))
        held = {
            _VERSION: version(),
            _HEADER: msgspec.json.encode(header).decode(),
            _RESULT: msgspec.json.encode(replace(outcome.result, file=trace.name)).decode(),
            _KINDS: msgspec.json.encode(calls.kinds).decode(),
        }
        held[_CHECKSUM] = _checksum(held, {name: frame[name].to_numpy() for name in _COLUMNS})
        write_parquet(frame, temporary, compression="zstd", metadata=held)
    return target


def _checksum(held: Mapping[str, str], columns: Mapping[str, Ints]) -> str:
    """CRC-32 of all that is taken from a file, whatever its form there."""
    # A fifth of the time of zlib's.
    from isal.isal_zlib import crc32

    found = 0
    for key in (_VERSION, _HEADER, _RESULT, _KINDS):
        found = crc32(held[key].encode(), found)
    for name in _COLUMNS:
        found = crc32(np.ascontiguousarray(columns[name]), found)
    return f"{found:08x}"


@dataclass(frozen=True, slots=True)
class Opened:
    """A kept analysis that has been looked into.

    Args:
        header: what it is of.
        held: all of its metadata.
        content: the whole file.
    """

    header: Header
    held: Mapping[str, str]
    content: bytes


def opened(path: Path, check: Callable[[Header], None]) -> Opened:
    """Look into a kept analysis.

    Args:
        path: of the kept analysis.
        check: raises `UnusableError` if it is of something else, before its tables are read.

    Raises:
        FileNotFoundError: there is no such file.
        UnusableError: it is damaged, of another version, or of something else.
    """
    try:
        # Opened once: of thousands of ranks on a shared file system, every time counts.
        content = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise FileNotFoundError(path) from error
    except OSError as error:
        raise UnusableError("damaged") from error
    if path_text(path) != str(path):
        raise UnusableError("under a name that is not UTF-8")
    import polars as pl

    with _damaged_if_odd():
        held = pl.read_parquet_metadata(BytesIO(content))
        if held[_VERSION] != version():
            raise UnusableError("of another version")
        header = msgspec.json.decode(held[_HEADER], type=Header)
        check(header)
    return Opened(header, held, content)


def read(several: Sequence[Opened]) -> Iterator[KeptAnalysis | UnusableError]:
    """What they hold, one after the other, or why one cannot be used."""
    found: list[dict[str, Ints]] | None = None
    if all(_CHECKSUM in one.held for one in several):
        # Which rows are whose is a guess, for which the checksums answer.
        found = columns_of_several([one.content for one in several], _COLUMNS)
    for number, one in enumerate(several):
        try:
            yield _parsed(one, found[number] if found else None)
        except UnusableError as error:
            yield error


def _parsed(one: Opened, columns: dict[str, Ints] | None) -> KeptAnalysis:
    with _damaged_if_odd():
        if columns is None or not _is_whole(one.held, columns):
            columns = columns_of(one.content, _COLUMNS)
            if not _is_whole(one.held, columns):
                raise UnusableError("damaged")
        result = _decoder(RankResult).decode(one.held[_RESULT])
        kinds = _decoder(tuple[CollectiveKind, ...]).decode(one.held[_KINDS])
        columns |= {name: _narrowed(columns[name]) for name in _NUMBERS}
    codes = columns["kind"]
    if len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) < len(kinds):
        raise UnusableError("damaged")
    header = one.header
    calls = RankCalls(kinds=kinds, **columns)
    return KeptAnalysis(header, RankOutcome(header.rank, result, calls, header.run))


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Made once: making it takes a fifth of the time of decoding."""
    return msgspec.json.Decoder(kind)


@contextmanager
def _damaged_if_odd() -> Iterator[None]:
    """Whatever cannot be read is damaged.

    Raises:
        UnusableError: instead of what polars and msgspec raise.
    """
    import polars as pl

    try:
        yield
    except (
        KeyError,
        OSError,
        msgspec.MsgspecError,
        pl.exceptions.PolarsError,
        # No Exception: polars raises it where a damaged file meets an assertion of its own.
        pl.exceptions.PanicException,
    ) as error:
        raise UnusableError("damaged") from error


def _is_whole(found: Mapping[str, str], columns: Mapping[str, Ints]) -> bool:
    """Whether the checksum says so; a file that never had one is believed."""
    if _CHECKSUM not in found:
        return found.keys() <= _KEYS
    return found[_CHECKSUM] == _checksum(found, columns)


def _narrowed(values: Ints) -> Ints:
    """In 32 bits where they fit: of a thousand ranks all lie in memory together."""
    if len(values) and not -_MOST <= int(values.min()) <= int(values.max()) <= _MOST:
        return values
    return values.astype(np.int32)
