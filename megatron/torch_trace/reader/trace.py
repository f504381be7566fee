# SPDX-License-Identifier: Apache-2.0
"""A trace file, opened: its metadata, its events block by block, and what was wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from megatron.torch_trace.errors import StrictError
from megatron.torch_trace.reader.block import EventBlock
from megatron.torch_trace.reader.bytestream import ByteStream
from megatron.torch_trace.reader.cutter import Cutter, RawBlock
from megatron.torch_trace.reader.damage import Damage
from megatron.torch_trace.reader.event import Event, EventT
from megatron.torch_trace.reader.metadata import Metadata, parse_members
from megatron.torch_trace.reader.stripes import Stripes
from megatron.torch_trace.reader.tail import Tail, count_events, unclosed
from megatron.torch_trace.reader.workers import SMALL_BYTES, Workers

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[Result]):
    """Result of one block, with what the reader itself must know of the block."""

    result: Result
    damage: Damage
    end: int | None
    unfinished: int | None


@dataclass(frozen=True, slots=True)
class Step(Generic[Result]):
    """What is computed of every block of text; equal where function and kind are.

    Args:
        function, kind: see `Trace.map`.
    """

    function: Callable[[EventBlock[Any]], Result]
    kind: type[Any]

    def __call__(self, raw: RawBlock) -> _Outcome[Result]:
        block = EventBlock(raw, self.kind)
        return _Outcome(self.function(block), block.damage, block.end, block.unfinished)


def _known(
    known: Callable[[RawBlock], Result | None] | None, raw: RawBlock
) -> _Outcome[Result] | None:
    result = known(raw) if known else None
    return None if result is None else _Outcome(result, Damage(), None, None)


def _identity(block: EventBlock[EventT]) -> EventBlock[EventT]:
    return block


class Trace:
    """Read one trace file, once, from front to back.

    Args:
        path: a trace, plain, gzip or zstd, whatever its name; `-` for standard input.
        strict: raise StrictError at the first fault instead of working on what is whole.
        on_read: called with the number of bytes of each piece read from the file, for progress.

    Attributes:
        metadata: from the header once reading has begun, complete when it has ended.
        damage: complete when reading has ended.
        is_array: the file is a bare array of events, so it has no metadata.

    Raises:
        NotATraceError: on first use, if the file is something else.

    Example:
        trace = Trace("rank-0.json.gz")
        for block in trace.blocks():
            for event in block.events: ...
        print(trace.metadata.rank, trace.damage.sentence())
    """

    def __init__(
        self,
        path: Path | str,
        *,
        strict: bool = False,
        on_read: Callable[[int], None] | None = None,
    ) -> None:
        self.path = Path(path)
        self.strict = strict
        self.metadata = Metadata()
        self.damage = Damage()
        self.stream = ByteStream(path, on_read)
        self._cutter = Cutter(self.stream)

    @property
    def is_array(self) -> bool:
        return self._cutter.is_array

    @property
    def raw_bytes(self) -> int:
        """Uncompressed bytes read so far."""
        return self.stream.produced

    def read_header(self) -> Metadata:
        """Metadata that stands before the events; whatever stands behind them is not there yet."""
        if not self.metadata.entries:
            self._cutter.start()
            self.metadata.maker = self._cutter.maker
            self.metadata.entries.update(parse_members(self._cutter.header, 0, self.damage))
        return self.metadata

    def blocks(self, kind: type[EventT] = Event) -> Iterator[EventBlock[EventT]]:  # type: ignore[assignment]
        """All events as `kind`, in the order of the file. Memory does not grow with the file."""
        yield from self.map(_identity, kind, workers=1)

    def map(
        self,
        function: Callable[[EventBlock[EventT]], Result],
        kind: type[EventT] = Event,  # type: ignore[assignment]
        *,
        workers: int = 1,
        small_results: bool = False,
        known: Callable[[RawBlock], Result | None] | None = None,
    ) -> Iterator[Result]:
        """`function` of every block, in the order of the file, computed by `workers` processes.

        Args:
            function: importable by name (a function, or an instance of a class), and free of
                state between blocks.
            kind: `Event`, or a struct with fewer fields that decodes faster.
            workers: 1 computes in this process; small files always do.
            small_results: every process may read the file itself instead of being sent blocks;
                faster where results are much smaller than blocks.
            known: asked first, in this process, with each block as text: a result spares decoding
                it, None does not. It must be None for the last block and for damaged ones. Needs
                `small_results`.
        """
        self.read_header()
        size = self.stream.size
        if (size is not None and size < SMALL_BYTES) or function.__module__ == "__main__":
            # Not worth starting processes for, or nothing that another process could import.
            workers = 1
        step = Step(function, kind)
        at_once = partial(_known, known)
        raws = iter(self._cutter)
        pairs: Iterable[tuple[RawBlock, _Outcome[Any]]]
        if workers > 1 and small_results and size is not None:
            pairs = Stripes(workers, self.path, step, at_once=at_once).map(raws)
        elif workers > 1:
            pairs = Workers(workers, step).map(raws)
        else:
            pairs = ((raw, at_once(raw) or step(raw)) for raw in raws)
        yield from self._follow(pairs, raws)
        if not self._cutter.has_events and unclosed(self._cutter.header) > 0:
            self.damage.add("truncated", len(self._cutter.header))
        self._close()

    def _follow(
        self, pairs: Iterable[tuple[RawBlock, _Outcome[Result]]], raws: Iterator[RawBlock]
    ) -> Iterator[Result]:
        tail = Tail()
        for raw, outcome in pairs:
            if tail:
                # traceEvents ended in an earlier block; this is text behind it.
                tail.add(raw.text, raw.offset)
                continue
            self._note(outcome, raw)
            yield outcome.result
            if outcome.end is not None:
                tail.add(raw.text[outcome.end :], raw.offset + outcome.end)
            elif raw.is_last:
                at = len(raw.text) if outcome.unfinished is None else outcome.unfinished
                self.damage.add("truncated", raw.offset + at)
        if tail:
            self._read_tail(tail)

    def _note(self, outcome: _Outcome[Any], raw: RawBlock) -> None:
        self.damage.include(outcome.damage)
        if outcome.unfinished is not None and not raw.is_last:
            self.damage.add("lost_event", raw.offset + outcome.unfinished)
        self._be_strict()

    def _read_tail(self, tail: Tail) -> None:
        members = tail.members(self.is_array, self.damage)
        if members.strip(b" \t\r\n,\0"):
            self.metadata.entries.update(parse_members(members, tail.offset, self.damage))
        second = count_events(self.metadata.entries.pop("traceEvents", b""))
        if second:
            self.damage.add("second_events", tail.offset, second)

    def _close(self) -> None:
        self.damage.include(self._cutter.damage)
        self.damage.include(self.stream.damage)
        self.metadata.entries.pop("traceEvents", None)
        self._be_strict()

    def _be_strict(self) -> None:
        if self.strict and self.damage:
            raise StrictError(f"{self.path}: damaged: {self.damage.sentence()}.")
