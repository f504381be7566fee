# SPDX-License-Identifier: Apache-2.0
"""Blocks of one file shared out to processes that read the file themselves.

No text goes to them through a pipe, only numbers of blocks. Unpacking and cutting are done by every
process, which costs less than handing the text over.

    this process   b0 b1 b2 ... b30 | b34 .. b36 .. b38      all blocks, while the others start,
    another                         |   b31 .. b33 .. b37    then those that the others cannot take
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from megatron.torch_trace.errors import TorchTraceError
from megatron.torch_trace.reader.bytestream import ByteStream
from megatron.torch_trace.reader.cutter import Cutter, RawBlock
from megatron.torch_trace.reader.early_blocks import EarlyBlocks, taken
from megatron.torch_trace.reader.workers import Child

Result = TypeVar("Result")

_HELLO = -1
_QUEUED = 3
"""Blocks that another process has been given: one in work, the next ones without a pause."""

_AHEAD = 8
"""Blocks a process that may be finished before an earlier one is."""


def _nothing(raw: RawBlock) -> None:
    return None


class Stripes(Generic[Result]):
    """`count` processes, this one included, that compute `function` of the blocks of `path`.

    Args:
        count: at least 2.
        path: a file that can be read again.
        function: what `Workers` could send: importable by name.
        alone: blocks that this process does before it gives any away; None, as many as it can
            until the others have started.
        at_once: the result of a block that needs no work, or None; asked in this process.
    """

    def __init__(
        self,
        count: int,
        path: Path,
        function: Callable[[RawBlock], Result],
        *,
        alone: int | None = None,
        at_once: Callable[[RawBlock], Result | None] = _nothing,
    ) -> None:
        self.count, self.path, self.function, self.alone = count, path, function, alone
        self.at_once = at_once

    def map(self, raws: Iterator[RawBlock]) -> Iterator[tuple[RawBlock, Result]]:
        """(block, function(block)) in the order of `raws`, which must be those of the file."""
        others = [_Other(self.path, self.function) for _ in range(1, self.count)]
        pending: deque[_Entry] = deque()
        try:
            for number, raw in enumerate(raws):
                entry = _Entry(raw)
                pending.append(entry)
                result = self.at_once(raw)
                if result is not None:
                    entry.finish(result)
                elif other := self._free(others, number):
                    other.give(number, entry)
                else:
                    entry.finish(self.function(raw))
                while pending and (pending[0].done or len(pending) > _AHEAD * self.count):
                    yield _finished(pending.popleft())
            while pending:
                yield _finished(pending.popleft())
        finally:
            for other in others:
                other.child.stop()

    def _free(self, others: list[_Other], number: int) -> _Other | None:
        for other in others:
            other.collect()
        if self.alone is not None and number < self.alone:
            return None
        for other in others:
            if number < other.early:
                return other
        return next((other for other in others if other.is_free(self.alone is not None)), None)


@dataclass(slots=True)
class _Entry:
    """A block, and the result that it has or will have from `owner`."""

    raw: RawBlock
    result: Any = None
    done: bool = False
    owner: _Other | None = None

    def finish(self, result: Any) -> None:
        self.result, self.done = result, True


def _finished(entry: _Entry) -> tuple[RawBlock, Any]:
    while not entry.done:
        assert entry.owner is not None
        entry.owner.receive()
    return entry.raw, entry.result


class _Other:
    """Another process: the blocks that it works on, and how many it had before it was asked."""

    def __init__(self, path: Path, function: Callable[[RawBlock], Any]) -> None:
        self.child = Child(_Stripe(path, function))
        self.child.send(_HELLO)
        self.has_started = False
        self.early = 0
        self.given: deque[_Entry] = deque()

    def is_free(self, at_once: bool) -> bool:
        return (self.has_started or at_once) and len(self.given) < _QUEUED

    def give(self, number: int, entry: _Entry) -> None:
        entry.owner = self
        self.given.append(entry)
        self.child.send(number)

    def collect(self) -> None:
        """Take the results that are there: the pipe holds little, and the other must not wait."""
        while (self.given or not self.has_started) and self.child.has_answered():
            self.receive()

    def receive(self) -> None:
        """Wait for the next answer."""
        answer = self.child.receive()
        if self.has_started:
            self.given.popleft().finish(answer)
        else:
            self.has_started, self.early = True, answer


class _Stripe:
    """In another process: each call gives the result of one block, later ones at later calls."""

    def __init__(self, path: Path, function: Callable[[RawBlock], Any]) -> None:
        self.path, self.function = path, function
        self._early: EarlyBlocks | None = None
        self._blocks: Iterator[tuple[int, RawBlock]] | None = None

    def __call__(self, wanted: int) -> Any:
        if wanted == _HELLO:
            self._early = taken(self.path, self.function)
            return len(self._early.results) if self._early else 0
        if self._early and wanted in self._early.results:
            return self._early.results.pop(wanted)
        if self._blocks is None:
            early = self._early
            self._blocks = early.blocks if early else enumerate(Cutter(ByteStream(self.path)))
        for number, raw in self._blocks:
            if number == wanted:
                return self.function(raw)
        raise TorchTraceError(f"{self.path}: has changed while it was read.")
