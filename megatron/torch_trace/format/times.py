# SPDX-License-Identifier: Apache-2.0
"""Microseconds as JSON text or number <-> integer nanoseconds, exactly.

`ts` and `dur` are always microseconds; `displayTimeUnit` is only a viewer's wish. A float64 holds
microseconds with three decimals exactly up to 2**43 (102 days): relative times are fine, absolute
ones (1.7e15) are not and are taken from the text.
"""

from __future__ import annotations

from decimal import Decimal

NO_TIME = -(1 << 63)
"""Stands for a time that is missing or no number."""

EXACT_FLOAT_US = float(1 << 43)
_LARGEST_NS = 1 << 61


def ns_of_text(text: str) -> int | None:
    """`"1723203468009469.317"` -> 1723203468009469317; None if it is no number.

    Beyond 73 years it is 73 years: the sum of a start and a duration must fit into 64 bits.
    """
    whole, _, decimals = text.strip().strip('"').partition(".")
    try:
        if len(decimals) <= 3:
            ns = int(whole + decimals.ljust(3, "0"))
        else:
            ns = _rounded(Decimal(f"{whole}.{decimals}"))
    except ValueError:
        try:
            ns = _rounded(Decimal(text.strip().strip('"')))
        except (ArithmeticError, ValueError):
            return None
    except ArithmeticError:
        return None
    return max(-_LARGEST_NS, min(ns, _LARGEST_NS))


def _rounded(microseconds: Decimal) -> int:
    if microseconds.is_finite() and microseconds.adjusted() > 18:
        # Written out, 1e999999 would have a million digits.
        return -_LARGEST_NS if microseconds < 0 else _LARGEST_NS
    return round(microseconds * 1000)


def text_of_ns(ns: int) -> str:
    """The inverse, as Kineto writes it: 1500 -> `"1.500"`."""
    sign = "-" if ns < 0 else ""
    whole, rest = divmod(abs(ns), 1000)
    return f"{sign}{whole}.{rest:03d}"
