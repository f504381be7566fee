# SPDX-License-Identifier: Apache-2.0
"""Dictionaries of one shape that follow each other, read as rows of a table.

Millions of entries of a history have the same keys in the same order, so one pattern over the bytes
reads an entry as a whole. What does not fit the pattern is read code by code as everything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from megatron.torch_trace.pickles import pickle_codes as code
from megatron.torch_trace.pickles.memo import LET_GO, Memo

_REFERENCE = rb"h.|j.{4}"
_NUMBER = rb"K.|M..|J.{4}|\x8a(?:\x03.{3}|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8})"
_CONSTANT = rb"[N\x88\x89]"
_LIST = rb"\]\x94(?:\((?:" + _REFERENCE + rb"){2,999}e)?"
_TEXT = b"\\x8c(?:%s)\\x94" % b"|".join(
    re.escape(bytes([size])) + b".{%d}" % size for size in range(32)
)
_KEY = b"(?:%s)" % _REFERENCE
_VALUE = b"(?:%s)" % b"|".join((_REFERENCE, _NUMBER, _CONSTANT, _LIST, _TEXT))
_PAIR = re.compile(b"(%s)(%s)" % (_KEY, _VALUE), re.DOTALL)
_ROW = re.compile(rb"\}\x94\(((?:" + _KEY + _VALUE + rb"){2,16})u", re.DOTALL)
_MOST_SHAPES = 8
_MOST_KNOWN = 1 << 16
MOST_ROWS = 1000
"""At once; a pickle of Python fills a list with so many at most."""


class _Shape:
    """The keys of dictionaries, and a pattern for one of them.

    Args:
        names: the keys.
        pairs: their codes and those of one row's values.
        values: of this row.

    Attributes:
        remembered: positions of values that may get a number of the memo.
    """

    def __init__(self, names: list[str], pairs: list[tuple[bytes, bytes]], values: list[Any]):
        self.names = names
        self.remembered: list[int] = []
        parts = []
        for index, ((key, written), value) in enumerate(zip(pairs, values, strict=True)):
            kinds = [_REFERENCE, _NUMBER, _CONSTANT]
            if isinstance(value, (tuple, list)) or written[0] == code.SHORT_BINUNICODE:
                self.remembered.append(index)
                kinds.append(_TEXT if type(value) is str else _LIST)
            parts.append(re.escape(key) + b"(" + b"|".join(kinds) + b")")
        pattern = re.compile(rb"\}\x94\(" + b"".join(parts) + b"u", re.DOTALL)
        self.match = pattern.match


class Rows:
    """Dictionaries of one shape.

    Args:
        names: their keys.
        rows: the codes of the values of each.
        value: the value that codes stand for.
    """

    def __init__(
        self, names: list[str], rows: list[tuple[bytes, ...]], value: Callable[[bytes], Any]
    ) -> None:
        self._columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        self._value = value
        self._rows = len(rows)

    def __len__(self) -> int:
        return self._rows

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def column(self, name: str) -> list[Any]:
        """The values of one key."""
        return list(map(self._value, self._columns[name]))

    def numbers(self, name: str) -> list[Any]:
        """The same of a key whose values are numbers that hardly occur twice."""
        value, number = self._value, int.from_bytes
        return [
            number(one[2:], "little", signed=True) if one[0] == code.LONG1 else value(one)
            for one in self._columns[name]
        ]

    def dictionaries(self) -> Iterator[dict[str, Any]]:
        """The rows one by one."""
        columns = [self.column(name) for name in self._columns]
        for row in zip(*columns, strict=True):
            yield dict(zip(self._columns, row, strict=True))


class RowReader:
    """Reads rows of the shapes that it has met.

    Args:
        memo: of the pickle; the things of the rows get their numbers.
    """

    def __init__(self, memo: Memo) -> None:
        self._memo = memo
        self._shapes: list[_Shape] = []
        self._known = _Known(self._new_value)
        self._codes: dict[bytes, int] = {}

    def read(self, ready: bytes, at: int) -> tuple[Rows | None, int]:
        """Rows from a position on.

        Args:
            ready: bytes of the pickle.
            at: where a dictionary begins.

        Returns:
            Rows, None if there are none; and where they end.
        """
        shape = next((one for one in self._shapes if one.match(ready, at)), None)
        shape = shape or self._learn(ready, at)
        if shape is None:
            return None, at
        rows: list[tuple[bytes, ...]] = []
        match, remembered, codes = shape.match, shape.remembered, self._codes
        numbers: list[int] = []
        while len(rows) < MOST_ROWS and (found := match(ready, at)) is not None:
            row = found.groups()
            numbers.append(LET_GO)
            for index in remembered:
                value = row[index]
                if value[0] in _REMEMBERED:
                    number = codes.get(value)
                    numbers.append(self._code(value, numbers) if number is None else number)
            rows.append(row)
            at = found.end()
        self._memo.extend(numbers)
        return Rows(shape.names, rows, self._known.__getitem__), at

    def _learn(self, ready: bytes, at: int) -> _Shape | None:
        if len(self._shapes) >= _MOST_SHAPES:
            return None
        found = _ROW.match(ready, at)
        if found is None:
            return None
        pairs = _PAIR.findall(found[1])
        names = [self._memo[_number(key)] for key, _ in pairs]
        if not all(type(one) is str for one in names) or len(set(names)) < len(names):
            return None
        if any(self._is_of_this_row(value) for _, value in pairs):
            return None  # its kind is not known before the row is read; a later row may tell
        shape = _Shape(names, pairs, [self._new_value(value) for _, value in pairs])
        self._shapes.append(shape)
        return shape

    def _is_of_this_row(self, value: bytes) -> bool:
        return value[0] in _BY_NUMBER and _number(value) >= len(self._memo)

    def _code(self, value: bytes, numbers: list[int]) -> int:
        """The code of a list or of a text that is met for the first time."""
        self._memo.extend(numbers)  # what the list refers to may be of these rows
        numbers.clear()
        number = self._codes[value] = self._memo.code_of(self._known[value])
        return number

    def _new_value(self, value: bytes) -> Any:
        op = value[0]
        if op in _BY_NUMBER:
            return self._memo[_number(value)]
        if op == code.EMPTY_LIST:
            return tuple(self._memo[_number(one)] for one in _references(value[3:-1]))
        if op == code.SHORT_BINUNICODE:
            return value[2:-1].decode(errors="replace")
        if op == code.LONG1:
            return int.from_bytes(value[2:], "little", signed=True)
        if op in code.CONSTANTS:
            return code.CONSTANTS[op]
        return int.from_bytes(value[1:], "little", signed=op == code.BININT)


_references = re.compile(_REFERENCE, re.DOTALL).findall
_BY_NUMBER = (code.BINGET, code.LONG_BINGET)
_REMEMBERED = (code.EMPTY_LIST, code.SHORT_BINUNICODE)


def _number(reference: bytes) -> int:
    return int.from_bytes(reference[1:], "little")


class _Known(dict[bytes, Any]):
    """Values by their codes: those of lists and texts for ever, of others for a while."""

    def __init__(self, new: Callable[[bytes], Any]) -> None:
        super().__init__()
        self._new = new
        self._passing = 0

    def __missing__(self, value: bytes) -> Any:
        if value[0] not in _REMEMBERED:
            self._passing += 1
            if self._passing > _MOST_KNOWN:
                kept = {one: found for one, found in self.items() if one[0] in _REMEMBERED}
                self.clear()
                self.update(kept)
                self._passing = 1
        found = self[value] = self._new(value)
        return found
