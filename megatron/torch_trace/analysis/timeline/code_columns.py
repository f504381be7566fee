# SPDX-License-Identifier: Apache-2.0
"""Columns of small codes: which occur, and which rows have one of some, without sorting."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.columns.intervals import Ints, ints


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
