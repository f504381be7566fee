# SPDX-License-Identifier: Apache-2.0
"""Blocks that a process computes before it is asked for them, while the one that will ask imports.

this process   imports ................... b0 [those of the other] b31 .. b33 ..
another        imports ..... b1 b2 .. b30                          b32 .. b34 ..
"""

from __future__ import annotations

import contextlib
import select
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from megatron.torch_trace.reader.bytestream import ByteStream
from megatron.torch_trace.reader.cutter import Cutter, RawBlock

_MOST = 64
"""Blocks that are kept; whoever imports for so long does not wait for them."""

_made: list[EarlyBlocks] = []
"""Those of this process, until they are taken."""


class EarlyBlocks:
    """The first blocks of a file.

    Args:
        path: of the file.
        function: what is computed of each block.

    Attributes:
        results: number of a block -> what `function` gave.
        blocks: the others, with their numbers.
    """

    def __init__(self, path: Path, function: Callable[[RawBlock], Any]) -> None:
        self.function, self._version = function, _version(path)
        self.results: dict[int, Any] = {}
        self.blocks: Iterator[tuple[int, RawBlock]] = enumerate(Cutter(ByteStream(path)))

    def is_of(self, path: Path, function: Callable[[RawBlock], Any]) -> bool:
        """Whether they are of this file, as it is now, and this function."""
        return self._version == _version(path) and self.function == function

    def compute(self, is_asked: Callable[[], bool]) -> None:
        """Block after block, until somebody asks."""
        while len(self.results) < _MOST and not is_asked():
            number, raw = next(self.blocks)
            self.results[number] = self.function(raw)


def begin(path: Path, function: Callable[[RawBlock], Any]) -> None:
    """Compute blocks until standard input holds a job; for `first` of `started_early`."""
    early = EarlyBlocks(path, function)
    with contextlib.suppress(StopIteration):
        early.compute(_is_asked)
    _made.append(early)


def taken(path: Path, function: Callable[[RawBlock], Any]) -> EarlyBlocks | None:
    """What was computed of a file by an equal function, which is the caller's now."""
    with contextlib.suppress(OSError):
        for early in _made:
            if early.is_of(path, function):
                _made.remove(early)
                return early
    return None


def _version(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_asked() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])
