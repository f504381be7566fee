# SPDX-License-Identifier: Apache-2.0
"""Values as codes: 0, 1, 2, ... in the order in which they are first seen."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Value = TypeVar("Value")


class Codes(dict[Any, int]):
    """Value -> code: `codes[value]` gives a new value the next code."""

    def __missing__(self, value: Any) -> int:
        code = self[value] = len(self)
        return code

    def of(self, values: Iterable[Any]) -> NDArray[np.int64]:
        """The codes of values, in their order."""
        return np.fromiter(map(self.__getitem__, values), np.int64)


def coded(values: Iterable[Value]) -> tuple[list[Value], NDArray[np.intp]]:
    """The different values, and for each value its place among them."""
    codes: defaultdict[Value, int] = defaultdict(itertools.count().__next__)
    code = np.fromiter(map(codes.__getitem__, values), np.intp)
    return list(codes), code
