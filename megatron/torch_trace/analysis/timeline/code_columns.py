# SPDX-License-Identifier: Apache-2.0
"""Columns of small codes: which occur, which rows have one of some, what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.columns.intervals import Ints, ints

_AT_ONCE = 1 << 20
"""Rows; numpy makes 64 bits of every code before it looks it up."""


def present(column: Ints) -> list[int]:
    """The codes from 0 on that occur in `column`, ascending."""
    found: list[int] = np.flatnonzero(np.bincount(column[column >= 0])).tolist()
    return found


def rows_with(column: Ints, codes: Iterable[int] | Ints, count: int) -> npt.NDArray[np.bool_]:
    """Which rows of `column` (codes below `count`, or -1 for none) hold one of `codes`."""
    # One more at the end, where -1 looks.
    table = np.zeros(count + 1, dtype=bool)
    table[ints(list(codes))] = True
    result: npt.NDArray[np.bool_] = table[column]
    return result


def codes_of(names: list[str], wanted: Callable[[str], bool]) -> list[int]:
    """Codes of the names that `wanted` accepts."""
    return [code for code, name in enumerate(names) if wanted(name)]


def by_code(values: npt.NDArray[Any], column: npt.NDArray[np.int32] | Ints) -> npt.NDArray[Any]:
    """`values[column]` of millions of rows, in no more memory than the answer takes."""
    found = np.empty(len(column), dtype=values.dtype)
    for part in _parts(len(column)):
        found[part] = values[column[part]]
    return found


def subtract_by_code(rows: Ints, values: Ints, column: npt.NDArray[np.int32] | Ints) -> None:
    """`rows -= values[column]`, in place and in no more memory."""
    for part in _parts(len(column)):
        rows[part] -= values[column[part]]


def _parts(count: int) -> Iterator[slice]:
    return (slice(at, at + _AT_ONCE) for at in range(0, count, _AT_ONCE))
