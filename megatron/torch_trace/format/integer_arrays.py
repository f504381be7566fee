# SPDX-License-Identifier: Apache-2.0
"""Times, codes and ids in columns: numpy arrays of 64-bit integers, never floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Column = npt.NDArray[np.integer[Any]]
"""The same numbers in as few bytes as they need; what is computed of them is `Ints`."""


def ints(values: npt.ArrayLike) -> Ints:
    """`values` as int64; an empty list too."""
    return np.asarray(values, dtype=np.int64)


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Each value once, ascending: np.unique in a tenth of the time, without importing numpy.ma."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def narrow(values: Ints) -> Column:
    """The same numbers in four bytes each, if these suffice."""
    if len(values) and (values.max() >= 1 << 31 or values.min() < -(1 << 31)):
        return values
    return values.astype(np.int32)
