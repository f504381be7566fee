# SPDX-License-Identifier: Apache-2.0
"""Times, codes and ids in columns: numpy arrays of 64-bit integers, never floats."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def ints(values: npt.ArrayLike) -> Ints:
    """`values` as int64; an empty list too."""
    return np.asarray(values, dtype=np.int64)
