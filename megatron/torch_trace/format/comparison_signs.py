# SPDX-License-Identifier: Apache-2.0
"""What conditions of `--fail-if` are written with: signs of comparison, and units of time."""

from __future__ import annotations

import operator
from collections.abc import Callable

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
NS_OF_UNIT = {"us": 1e3, "ms": 1e6, "s": 1e9}
"""ns of one."""
