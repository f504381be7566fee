# SPDX-License-Identifier: Apache-2.0
"""Columns of small codes: which occur, which rows have one of some, what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.columns.intervals import Ints, ints

Codes = npt.NDArray[np.int32 | np.uint16] | npt.NDArray[np.int32] | Ints
_AT_ONCE = 1 << 16
"""Rows; numpy makes 64 bits of every code before it looks it up, which then stay in the cache."""


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


def add_by_code(rows: Ints, values: Ints, column: Codes, found: Ints) -> None:
    """`found[:] = rows + values[column]` of millions of rows, in no more memory."""
    for part in _parts(len(column)):
        np.add(rows[part], values[column[part]], out=found[part])


def subtract_by_code(rows: Ints, values: Ints, column: Codes) -> None:
    """`rows -= values[column]`, in place and in no more memory."""
    for part in _parts(len(column)):
        rows[part] -= values[column[part]]


def reduce_by_code(reduce: np.ufunc, values: Ints, column: Codes, first: Ints) -> Ints:
    """`reduce.reduceat(values[column], first)` of millions of rows, in little memory.

    Args:
        reduce: such as `np.maximum`.
        values: what the codes stand for.
        column: codes, at least one.
        first: the first row of each run, ascending from 0.
    """
    found = np.empty(len(first), dtype=values.dtype)
    at = 0
    while at < len(first):
        # As many runs as fit, and at least one.
        end = int(np.searchsorted(first, first[at] + _AT_ONCE))
        to = int(first[end]) if end < len(first) else len(column)
        part = values[column[first[at] : to]]
        reduce.reduceat(part, first[at:end] - first[at], out=found[at:end])
        at = end
    return found


def _parts(count: int) -> Iterator[slice]:
    return (slice(at, at + _AT_ONCE) for at in range(0, count, _AT_ONCE))
