# SPDX-License-Identifier: Apache-2.0
"""What a pickle may refer to later, in little memory: millions of numbers for few things.

A pickle gives a number to everything that could occur again. Almost all numbers of a long history
are of entries, which never do, and of equal stacks: a number costs four bytes while it is recent,
and less than one when it is old.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable
from typing import Any

_BLOCK = 1 << 13
_RECENT = 8 * _BLOCK
_UNPACKED = 64
_FOUND = 1 << 16
LET_GO = 0
"""The code of what is not kept."""


class Memo:
    """Things by their numbers, which count from 0."""

    def __init__(self) -> None:
        self._things: list[Any] = [None]
        self._free: list[int] = []
        self._recent = array("i")
        self._base = 0
        self._packed: list[bytes] = []
        self._changed: dict[int, int] = {}
        self._unpacked: dict[int, array[int]] = {}
        self._found: dict[int, int] = {}
        self._dicts: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return self._base + len(self._recent)

    def __getitem__(self, number: int) -> Any:
        at = number - self._base
        if at >= 0:
            return self._things[self._recent[at]]
        return self._things[self._old(number)]

    def append(self, thing: Any) -> None:
        """Give a thing the next number."""
        code = self.code_of(thing)
        if type(thing) is dict:
            self._dicts.append((len(self), code))
        self.extend((code,))

    def code_of(self, thing: Any) -> int:
        """A code for a thing, of which many numbers may be made."""
        if self._free:
            code = self._free.pop()
            self._things[code] = thing
            return code
        self._things.append(thing)
        return len(self._things) - 1

    def extend(self, codes: Iterable[int]) -> None:
        """The next numbers are of these codes."""
        self._recent.extend(codes)
        while len(self._recent) > 2 * _RECENT:
            self._pack()

    def put(self, number: int, thing: Any) -> None:
        """Give a thing this number, which another may have had."""
        if number == len(self):
            self.append(thing)
        elif number >= self._base:
            self._recent[number - self._base] = self.code_of(thing)
        else:
            self._changed[number] = self.code_of(thing)

    def let_go(self, first: int, key: str) -> None:
        """Forget dictionaries with a key among the numbers from `first` on."""
        for number, code in self._dicts:
            if number >= max(first, self._base) and key in self._things[code]:
                self._recent[number - self._base] = LET_GO
                self._things[code] = None
                self._free.append(code)
        self._dicts.clear()

    def _pack(self) -> None:
        for start in range(0, _RECENT, _BLOCK):
            block = self._recent[start : start + _BLOCK]
            self._packed.append(zlib.compress(block.tobytes(), 1))
        del self._recent[:_RECENT]
        self._base += _RECENT

    def _old(self, number: int) -> int:
        if number < 0:
            raise IndexError(number)
        code = self._changed.get(number)
        if code is None:
            code = self._found.get(number)
        if code is None:
            if len(self._found) >= _FOUND:
                self._found.clear()
            code = self._found[number] = self._block(number // _BLOCK)[number % _BLOCK]
        return code

    def _block(self, index: int) -> array[int]:
        block = self._unpacked.pop(index, None)
        if block is None:
            block = array("i", zlib.decompress(self._packed[index]))
            if len(self._unpacked) >= _UNPACKED:
                del self._unpacked[next(iter(self._unpacked))]
        self._unpacked[index] = block
        return block
