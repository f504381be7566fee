# SPDX-License-Identifier: Apache-2.0
"""Many messages of one form at once: constant bytes with slots for numbers, as rows of a matrix.

A varint may be padded to any width, so all messages of one form are equally long and numpy writes
them column by column:

    0a 1e 40 [ts ts ts ts ts] 50 81 00 ... 58 [track] 18 [category] 50 [name name]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.perfetto import wire

Bytes = NDArray[np.uint8]
Columns = Sequence[NDArray[Any]]
ColumnsOf = Callable[[int, NDArray[np.intp]], Columns]


class Slot(NamedTuple):
    """Room for one number of each message.

    Args:
        width: bytes.
        fixed: little-endian instead of a varint.
    """

    width: int
    fixed: bool = False


Parts = list[bytes | Slot]

_SHORT = 1 << 14
_LARGEST_MATRIX = 1 << 25


def size_of(parts: Parts) -> int:
    return sum(part.width if isinstance(part, Slot) else len(part) for part in parts)


def message(field: int, parts: Parts) -> Parts:
    """A message within another."""
    size = size_of(parts)
    return [wire.bytes_key(field) + wire.varint(size, 2 if size < _SHORT else 5), *parts]


def number(field: int, width: int) -> Parts:
    """A field that holds a varint."""
    return [wire.number_key(field), Slot(width)]


def eight_bytes(field: int) -> Parts:
    """A field that holds eight bytes."""
    return [wire.fixed_key(field), Slot(8, fixed=True)]


class Shape:
    """The form of a message.

    Args:
        parts: its bytes and slots in order.
    """

    def __init__(self, parts: Parts) -> None:
        self.width = size_of(parts)
        self._template = np.zeros(self.width, dtype=np.uint8)
        self._slots: list[tuple[int, Slot]] = []
        at = 0
        for part in parts:
            if isinstance(part, Slot):
                self._slots.append((at, part))
                at += part.width
            else:
                self._template[at : at + len(part)] = np.frombuffer(part, dtype=np.uint8)
                at += len(part)

    def fill(self, rows: Bytes, columns: Columns) -> None:
        """Write messages.

        Args:
            rows: one row for each message, at least `width` wide.
            columns: 64-bit values of each slot.
        """
        rows[:, : self.width] = self._template
        for (at, slot), values in zip(self._slots, columns, strict=True):
            bits = np.ascontiguousarray(values).view(np.uint64)
            if slot.fixed:
                rows[:, at : at + 8] = bits.view(np.uint8).reshape(-1, 8)
                continue
            for nth in range(slot.width):
                byte = ((bits >> np.uint64(7 * nth)) & np.uint64(0x7F)).astype(np.uint8)
                if nth < slot.width - 1:
                    byte |= np.uint8(0x80)
                rows[:, at + nth] = byte


def interleave(forms: NDArray[np.intp], shapes: Sequence[Shape], columns_of: ColumnsOf) -> bytes:
    """Messages of several forms, in order, as one string.

    Args:
        forms: form of each message, an index into `shapes`.
        columns_of: called with a form and the positions of its messages; its columns.
    """
    widths = np.array([shape.width for shape in shapes], dtype=np.int64)[forms]
    widest = int(widths.max(initial=0))
    if len(forms) > 1 and widest * len(forms) > _LARGEST_MATRIX:
        # One launch of a graph may have a thousand arrows, and its packet be as wide.
        half = len(forms) // 2
        return interleave(forms[:half], shapes, columns_of) + interleave(
            forms[half:], shapes, lambda form, rows: columns_of(form, rows + half)
        )
    rows = np.empty((len(forms), widest), dtype=np.uint8)
    for form in np.flatnonzero(np.bincount(forms, minlength=len(shapes))).tolist():
        positions = np.flatnonzero(forms == form)
        block = np.empty((len(positions), shapes[form].width), dtype=np.uint8)
        shapes[form].fill(block, columns_of(form, positions))
        rows[positions, : shapes[form].width] = block
    if (widths == widest).all():
        return rows.tobytes()
    return rows[np.arange(widest) < widths[:, None]].tobytes()
