# SPDX-License-Identifier: Apache-2.0
"""A column of a table that grows where it is.

Kept as the thousands of small arrays that it comes in, it would leave as many holes in the memory
of the process, which nobody gets back: more than the columns themselves take.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.columns.intervals import Ints

_LEAST_ROOM = 1 << 12


class GrowingColumn:
    """Integers behind each other, or nothing in every row, which takes no memory.

    Args:
        dtype: of the column.
        nothing: what stands for "has none".
    """

    def __init__(self, dtype: Any, nothing: int) -> None:
        self._dtype = np.dtype(dtype)
        self._nothing = nothing
        self._length = 0
        self._values: Ints | None = None

    def __len__(self) -> int:
        return self._length

    def add(self, values: npt.NDArray[Any]) -> None:
        """Append `values`."""
        if self._values is None:
            self._values = np.full(self._length, self._nothing, dtype=self._dtype)
        self._grow(self._values, len(values))[:] = values

    def add_nothing(self, count: int) -> None:
        """Append `count` rows that have none."""
        if self._values is None:
            self._length += count
        else:
            self._grow(self._values, count)[:] = self._nothing

    def _grow(self, values: Ints, count: int) -> Ints:
        before = self._length
        self._length += count
        if self._length > len(values):
            # An eighth at a time: what is large the system moves without copying.
            room = max(_LEAST_ROOM, self._length // 8)
            values.resize(self._length + room, refcheck=False)
        return values[before : self._length]

    def finish(self) -> Ints:
        """All of it, which is this object's no longer."""
        values, self._values = self._values, None
        if values is None and self._length:
            return nothing_of(self._dtype, self._nothing, self._length)
        if values is None:
            return np.zeros(0, dtype=self._dtype)
        values.resize(self._length, refcheck=False)
        return values


def nothing_of(dtype: Any, nothing: int, count: int) -> Ints:
    """`nothing` in every row, as one value; a tenth of the time of numpy's broadcast_to."""
    one = np.array([nothing], dtype=dtype)
    none: Ints = np.ndarray((count,), dtype=one.dtype, buffer=one, strides=(0,))
    none.flags.writeable = False
    return none


def taken(column: Ints, rows: Any) -> Ints:
    """Some rows of a column, or all in another order; nothing in every row stays one value."""
    if column.strides == (0,) and len(column):
        count = int(np.count_nonzero(rows)) if rows.dtype == np.bool_ else len(rows)
        return nothing_of(column.dtype, column[0], count)
    chosen: Ints = column[rows]
    return chosen
