# SPDX-License-Identifier: Apache-2.0
"""The bytes of a pickle, ready a piece at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from megatron.torch_trace.errors import TorchTraceError

_LONGEST_TEXT = 1 << 26
_SPARE = 1 << 16
CODES_AT_ONCE = 250
"""Codes that a filled buffer is enough for, but for long texts: 257 bytes are the longest."""
END = 0x00
"""No pickle has this code: it stands behind the last byte."""
_PADDING = bytes([END]) * 300
"""Longer than any code but those of long texts."""


class NotPlainError(TorchTraceError):
    """The pickle asks for more than plain data; the message is the end of a sentence."""


class CutShortError(Exception):
    """The bytes end before the pickle does."""


class PickleBytes:
    """A buffer over pieces.

    Attributes:
        ready: bytes that lie ready, and the padding behind them.
        at: position in `ready` of the next one.
        end: where the padding begins.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.ready = b""
        self.at = self.end = 0
        self._pieces: Iterator[bytes] = iter(pieces)
        self._ended = False

    def fill(self, wanted: int = _SPARE) -> None:
        """Have `wanted` bytes ready, or all that are left."""
        if self.at + wanted <= self.end or self._ended:
            return
        rest = [self.ready[self.at : self.end]]
        count = len(rest[0])
        while count < wanted and not self._ended:
            piece = next(self._pieces, b"")
            self._ended = not piece
            rest.append(piece)
            count += len(piece)
        self.ready, self.at, self.end = b"".join([*rest, _PADDING]), 0, count

    def take(self, count: int) -> bytes:
        """The next `count` bytes.

        Raises:
            CutShortError: there are fewer.
            NotPlainError: nobody writes such a long text.
        """
        if count > _LONGEST_TEXT:
            raise NotPlainError(f"holds a text of {count:,} bytes")
        if self.at + count > self.end:
            self.fill(count + _SPARE)
            if self.at + count > self.end:
                raise CutShortError
        self.at += count
        return self.ready[self.at - count : self.at]

    def number(self, size: int) -> int:
        """The next `size` bytes as a number."""
        return int.from_bytes(self.take(size), "little")
