# SPDX-License-Identifier: Apache-2.0
"""Entries of one device's history, as columns while they are read."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from megatron.torch_trace.allocator.snapshot import Action
from megatron.torch_trace.allocator.stack_table import StackTable
from megatron.torch_trace.format.integer_arrays import Column
from megatron.torch_trace.pickles.rows import Rows

_ACTIONS = {one.name.lower(): int(one) for one in Action}
_WIDTHS = "bhiq"
_NS = 1000
_AT_ONCE = 1000
"""Entries that are put into columns together."""


class _GrowingColumn:
    """Whole numbers of 1, 2, 4 or 8 bytes each, as the largest one needs."""

    def __init__(self, width: str) -> None:
        self._values = array(width)

    def extend(self, values: Sequence[int]) -> None:
        while True:
            try:
                added = array(self._values.typecode, values)
            except OverflowError:
                wider = _WIDTHS[_WIDTHS.index(self._values.typecode) + 1]
                self._values = array(wider, self._values)
            else:
                self._values.extend(added)
                return

    def column(self) -> Column:
        """All of them, where they lie."""
        found: Column = np.frombuffer(self._values, dtype=self._values.typecode)
        return found


class Entries:
    """One device's entries, oldest first.

    Args:
        stacks: of the snapshot.

    Attributes:
        odd: entries that are not what torch writes, left out.
    """

    def __init__(self, stacks: StackTable) -> None:
        self.odd = 0
        self._stacks = stacks
        self._waiting: list[tuple[int, ...]] = []
        self._columns = [_GrowingColumn(width) for width in "bqibqh"]

    def add(self, one: Any) -> None:
        """An entry as torch writes it."""
        try:
            row = (
                _ACTIONS.get(text_of(one["action"]), int(Action.OTHER)),
                int_of(one.get("device_free", one.get("addr", 0))),
                int_of(one.get("size", 0)),
                int_of(one.get("stream", 0)),
                time_of(one),
                self._stacks.number(one.get("frames")),
            )
            if not all(-(1 << 63) <= value < 1 << 63 for value in row):
                raise OverflowError
        except (TypeError, KeyError, AttributeError, OverflowError):
            self.odd += 1
            return
        self._waiting.append(row)
        if len(self._waiting) == _AT_ONCE:
            self._take_waiting()

    def add_rows(self, rows: Rows) -> None:
        """Entries of one shape."""
        columns = self._plain(rows)
        if columns is None:
            for one in rows.dictionaries():
                self.add(one)
        else:
            self._take_waiting()
            self._extend(columns)

    def columns(self) -> list[Column]:
        """Action, address, size, stream, time, stack."""
        self._take_waiting()
        return [one.column() for one in self._columns]

    def _take_waiting(self) -> None:
        if self._waiting:
            self._extend(list(zip(*self._waiting, strict=True)))
            self._waiting.clear()

    def _extend(self, columns: Sequence[Sequence[int]]) -> None:
        for column, values in zip(self._columns, columns, strict=True):
            column.extend(values)

    def _plain(self, rows: Rows) -> list[Sequence[int]] | None:
        """The columns of rows that are all what torch writes; None where one may not be."""
        actions, zeros = rows.column("action"), [0] * len(rows)
        if set(map(type, actions)) != {str}:
            return None
        found: list[Sequence[int]] = [[_ACTIONS.get(one, int(Action.OTHER)) for one in actions]]
        address = "device_free" if "device_free" in rows else "addr"
        times = rows.numbers("time_us") if "time_us" in rows else zeros
        for values in (
            rows.numbers(address) if address in rows else zeros,
            rows.column("size") if "size" in rows else zeros,
            rows.column("stream") if "stream" in rows else zeros,
            times,
        ):
            # Codes of at most eight bytes: none of them is beyond 63 bits.
            if set(map(type, values)) != {int}:
                return None
            found.append(values)
        if max(times) >= (1 << 63) // _NS or min(times) <= -(1 << 63) // _NS:
            return None
        found[-1] = [_NS * one for one in times]
        number = self._stacks.number
        found.append(list(map(number, rows.column("frames"))) if "frames" in rows else zeros)
        return found


def text_of(value: Any) -> str:
    """A text.

    Raises:
        TypeError: it is none; to look a stranger's value up, or to print it, may take for ever.
    """
    if type(value) is not str:
        raise TypeError
    return value


def time_of(one: dict[str, Any]) -> int:
    """ns since 1970, as long as 64 bits hold them.

    Raises:
        TypeError: it is no whole number.
        OverflowError: it is too large.
    """
    time = _NS * int_of(one.get("time_us", 0))
    if abs(time) >= 1 << 63:
        raise OverflowError
    return time


def int_of(value: Any) -> int:
    """A whole number; an address beyond 63 bits as a negative one.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, int):
        raise TypeError
    return value if value < 1 << 63 else value - (1 << 64)
