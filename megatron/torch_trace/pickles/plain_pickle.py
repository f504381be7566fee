# SPDX-License-Identifier: Apache-2.0
"""A pickle as plain data: numbers, texts, lists, dictionaries. Nothing in it is ever called.

A pickle is a program, and Python's own reader runs it. This one knows the codes that stand for data
and refuses every other by name before anything happens. It reads a stream in pieces and hands long
lists on while it reads, so memory does not grow with the file; it also reads what is whole of a
pickle that was cut short.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from typing import Any

from megatron.torch_trace.pickles import pickle_codes as code
from megatron.torch_trace.pickles.memo import Memo
from megatron.torch_trace.pickles.pickle_bytes import (
    CODES_AT_ONCE,
    END,
    CutShortError,
    NotPlainError,
    PickleBytes,
)
from megatron.torch_trace.pickles.rows import RowReader

_REFERENCES = re.compile(rb"\x94\(((?:h.|j.{4}){1,999})e", re.DOTALL)
"""What follows the code of an empty list that is filled with things that came before. Python fills
a longer list thousand by thousand."""
_REFERENCE = re.compile(rb"h(.)|j(.{4})", re.DOTALL)
_MARK = object()
Taker = Callable[[list[Any], list[Any]], bool]


class PlainPickle:
    """The value of a pickle, read once.

    Args:
        pieces: its bytes.
        take: gets a list and what the pickle appends to it; True: it has taken the items, which are
            then neither appended nor kept.
        as_rows: once it has taken items of a list, dictionaries that follow in this list may come
            as `Rows`, many in one.

    Attributes:
        cut_short: the bytes ended before the pickle did; the value holds what was whole.
    """

    def __init__(self, pieces: Iterable[bytes], take: Taker, *, as_rows: bool = False) -> None:
        self.cut_short = False
        self._bytes = PickleBytes(pieces)
        self._take = take
        self._stack: list[Any] = []
        self._marks: list[tuple[int, int]] = []
        self._memo = Memo()
        self._rows = RowReader(self._memo)
        self._as_rows = as_rows
        self._taken: Any = None
        self._runs: dict[bytes, tuple[Any, ...]] = {}

    def value(self) -> Any:
        """Read it.

        Returns:
            The value; lists of things that occurred before are tuples, equal ones the same tuple.

        Raises:
            NotPlainError: it asks for anything but plain data, or is no pickle.
        """
        self._bytes.fill()
        if not self._bytes.ready.startswith(bytes([code.PROTO])):
            raise NotPlainError("is no pickle of protocol 2 or later")
        try:
            self._read()
        except CutShortError:
            self.cut_short = True
            self._close_what_is_open()
        except (LookupError, TypeError, AttributeError, ValueError, struct.error) as error:
            raise NotPlainError("is no pickle: its codes contradict each other") from error
        if not self._stack:
            raise NotPlainError("holds no value")
        return self._stack[-1]

    def _read(self) -> None:
        source, stack, memo, marks = self._bytes, self._stack, self._memo, self._marks
        thing = memo.__getitem__
        while True:
            source.fill()
            ready, at = source.ready, source.at
            for _ in range(CODES_AT_ONCE):
                op = ready[at]
                if op == code.BINGET:
                    stack.append(thing(ready[at + 1]))
                    at += 2
                elif op == code.LONG_BINGET:
                    stack.append(thing(int.from_bytes(ready[at + 1 : at + 5], "little")))
                    at += 5
                elif op == code.MEMOIZE:
                    memo.append(stack[-1])
                    at += 1
                elif op == code.LONG1:
                    end = at + 2 + ready[at + 1]
                    stack.append(int.from_bytes(ready[at + 2 : end], "little", signed=True))
                    at = end
                elif op == code.MARK:
                    marks.append((len(stack), len(memo)))
                    at += 1
                elif op == code.BININT1:
                    stack.append(ready[at + 1])
                    at += 2
                elif op == code.SHORT_BINUNICODE:
                    end = at + 2 + ready[at + 1]
                    stack.append(ready[at + 2 : end].decode(errors="replace"))
                    at = end
                else:
                    source.at = at + 1
                    if op == code.STOP:
                        return
                    self._less_frequent(op)
                    ready, at = source.ready, source.at
            source.at = at

    def _less_frequent(self, op: int) -> None:
        stack = self._stack
        if op == code.EMPTY_LIST:
            if not self._known_list():
                stack.append([])
        elif op == code.EMPTY_DICT:
            if not self._known_rows():
                stack.append({})
        elif op == code.SETITEMS or op == code.APPENDS:
            self._fill(op)
        elif op in code.NUMBERS:
            size, signed = code.NUMBERS[op]
            stack.append(int.from_bytes(self._bytes.take(size), "little", signed=signed))
        elif op in code.TEXTS:
            stack.append(
                self._bytes.take(self._bytes.number(code.TEXTS[op])).decode(errors="replace")
            )
        else:
            self._rare(op)

    def _rare(self, op: int) -> None:
        stack = self._stack
        if op == END and self._bytes.at > self._bytes.end:
            if self._bytes.at > self._bytes.end + 1:  # the last value is of the padding
                stack.pop()
            raise CutShortError
        if op in code.CONSTANTS:
            stack.append(code.CONSTANTS[op])
        elif op in code.SMALL_TUPLES:
            count = code.SMALL_TUPLES[op]
            items = tuple(stack[len(stack) - count :])
            del stack[len(stack) - count :]
            stack.append(items)
        elif op == code.TUPLE:
            stack.append(tuple(self._since_mark()[0]))
        elif op == code.APPEND:
            self._append([stack.pop()], len(self._memo) - 1)
        elif op == code.SETITEM:
            value, key = stack.pop(), stack.pop()
            _refuse_deep([key])
            stack[-1][key] = value
        elif op == code.BINFLOAT:
            stack.append(struct.unpack(">d", self._bytes.take(8))[0])
        elif op in (code.BINPUT, code.LONG_BINPUT):
            self._put(self._bytes.number(1 if op == code.BINPUT else 4))
        elif op in code.BYTES:
            stack.append(self._bytes.take(self._bytes.number(code.BYTES[op])))
        elif op == code.PROTO:
            self._bytes.take(1)
        elif op == code.FRAME:
            self._bytes.take(8)
        elif op == code.POP:
            stack.pop()
        elif op == code.GLOBAL:
            stack.append(self._named_call())
        elif op == code.STACK_GLOBAL:
            name = stack.pop()
            raise NotPlainError(f"asks for {stack.pop()}.{name}, which is not plain data")
        elif op == code.REDUCE:
            self._call()
        else:
            name = code.name(op)
            if name is None:
                raise NotPlainError(f"is no pickle: it has the code {op:#04x}")
            raise NotPlainError(f"asks for {name}, which is not plain data")

    def _known_list(self) -> bool:
        """Whether a list of things that came before begins here; then it is read as a whole."""
        found = _REFERENCES.match(self._bytes.ready, self._bytes.at)
        if found is None:
            return False
        self._bytes.at = found.end()
        run = found[1]
        items = self._runs.get(run)
        if items is None:
            indices = (one[0] or one[1] for one in _REFERENCE.findall(run))
            items = tuple(self._memo[int.from_bytes(index, "little")] for index in indices)
            self._runs[run] = items
        self._bytes.fill()
        self._memo.append(items)
        self._stack.append(items)
        return True

    def _known_rows(self) -> bool:
        """Whether items of a list that is taken begin here; then they are read as rows."""
        if self._taken is None or not self._marks:
            return False
        below = self._marks[-1][0] - 1
        if below < 0 or self._stack[below] is not self._taken:
            return False
        rows, end = self._rows.read(self._bytes.ready, self._bytes.at - 1)
        if rows is None:
            return False
        self._bytes.at = end
        self._bytes.fill()
        self._stack.append(rows)
        return True

    def _since_mark(self) -> tuple[list[Any], int]:
        at, memorised = self._marks.pop()
        items = self._stack[at:]
        del self._stack[at:]
        return items, memorised

    def _fill(self, op: int) -> None:
        items, memorised = self._since_mark()
        if op == code.APPENDS:
            self._append(items, memorised)
        else:
            keys = items[::2]
            _refuse_deep(keys)
            self._stack[-1].update(zip(keys, items[1::2], strict=True))

    def _append(self, items: list[Any], memorised: int) -> None:
        into = self._stack[-1]
        if not self._take(into, items):
            into.extend(items)
            return
        self._taken = into if self._as_rows else None
        # Nothing refers to them later; remembered, they would stay.
        self._memo.let_go(memorised, "frames")

    def _put(self, index: int) -> None:
        if index > len(self._memo):
            raise NotPlainError(f"remembers number {index:,} after {len(self._memo):,}")
        self._memo.put(index, self._stack[-1])

    def _named_call(self) -> Any:
        names = []
        for _ in range(2):
            letters = bytearray()
            while (letter := self._bytes.take(1)) != b"\n":
                letters += letter
            names.append(letters.decode(errors="replace"))
        if tuple(names) not in code.CALLS_OF_PLAIN_DATA:
            raise NotPlainError(f"asks for {'.'.join(names)}, which is not plain data")
        return _MARK

    def _call(self) -> None:
        arguments = self._stack.pop()
        if self._stack.pop() is not _MARK:
            raise NotPlainError("asks for a call, which is not plain data")
        self._stack.append(arguments[0])

    def _close_what_is_open(self) -> None:
        """Put what was read into the lists and dictionaries that were not yet complete."""
        while self._marks:
            items, memorised = self._since_mark()
            into = self._stack[-1] if self._stack else None
            if isinstance(into, list):
                self._append(items, memorised)
            elif isinstance(into, dict):
                into.update(
                    (k, v) for k, v in zip(items[::2], items[1::2], strict=False) if _is_key(k)
                )


def _is_key(value: Any) -> bool:
    return isinstance(value, (str, int)) or (type(value) is tuple and _is_flat(value))


def _refuse_deep(keys: list[Any]) -> None:
    """Refuse keys of tuples in tuples: twice itself, sixty times over, such a key is never hashed.

    Raises:
        NotPlainError: there is one.
    """
    if tuple in map(type, keys) and not all(_is_flat(one) for one in keys if type(one) is tuple):
        raise NotPlainError("has tuples in tuples as keys of a dictionary, which nobody writes")


def _is_flat(value: tuple[Any, ...]) -> bool:
    return tuple not in map(type, value)
