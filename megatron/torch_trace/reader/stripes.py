# SPDX-License-Identifier: Apache-2.0
"""Blocks of one file shared out to processes that read the file themselves.

For functions with small results: no text goes through a pipe. Unpacking and cutting are done by
every process, which costs less than handing the text over.

    this process   b0 b1 b2 b3 | b4 .. b6 .. b8      the first blocks, while the others start,
    another                    |    b5 .. b7         then every other one
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from megatron.torch_trace.reader.bytestream import ByteStream
from megatron.torch_trace.reader.cutter import Cutter, RawBlock
from megatron.torch_trace.reader.workers import Child

Result = TypeVar("Result")

_ALONE = 24
"""Blocks that this process does while the others start: measured, a start takes about 0.2 s."""

_AHEAD = 8
"""Blocks of its own that this process does before it waits for another's result."""


class Stripes(Generic[Result]):
    """`count` processes, this one included, that compute `function` of the blocks of `path`.

    Args:
        count: at least 2.
        path: a file that can be read again.
        function: what `Workers` could send: importable by name.
        alone: blocks that this process does while the others start.
    """

    def __init__(
        self,
        count: int,
        path: Path,
        function: Callable[[RawBlock], Result],
        *,
        alone: int = _ALONE,
    ) -> None:
        self.count, self.path, self.function, self.alone = count, path, function, alone

    def map(self, raws: Iterator[RawBlock]) -> Iterator[tuple[RawBlock, Result]]:
        """(block, function(block)) in the order of `raws`, which must be those of the file."""
        turn_of = partial(_turn, self.count, self.alone)
        children = [
            Child(_Stripe(self.path, turn, turn_of, self.function)) for turn in range(1, self.count)
        ]
        pending: deque[tuple[RawBlock, Child | None, Result | None]] = deque()
        try:
            for number, raw in enumerate(raws):
                turn = turn_of(number)
                if turn:
                    children[turn - 1].send(None)
                    pending.append((raw, children[turn - 1], None))
                else:
                    pending.append((raw, None, self.function(raw)))
                while len(pending) > _AHEAD * self.count:
                    yield _finished(*pending.popleft())
            while pending:
                yield _finished(*pending.popleft())
        finally:
            for child in children:
                child.stop()


def _turn(count: int, alone: int, number: int) -> int:
    """Whose block this is; 0 is the process that asked."""
    return 0 if number < alone else number % count


def _finished(raw: RawBlock, child: Child | None, result: Any) -> tuple[RawBlock, Any]:
    return raw, result if child is None else child.receive()


class _Stripe:
    """In another process: each call gives the result of the next block whose turn it is."""

    def __init__(
        self,
        path: Path,
        turn: int,
        turn_of: Callable[[int], int],
        function: Callable[[RawBlock], Any],
    ) -> None:
        self.path, self.turn, self.turn_of, self.function = path, turn, turn_of, function
        self._results: Iterator[Any] | None = None

    def __call__(self, _: None) -> Any:
        if self._results is None:
            self._results = self._compute()
        return next(self._results)

    def _compute(self) -> Iterator[Any]:
        for number, raw in enumerate(Cutter(ByteStream(self.path))):
            if self.turn_of(number) == self.turn:
                yield self.function(raw)
