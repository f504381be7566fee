# SPDX-License-Identifier: Apache-2.0
"""Microseconds as JSON text or number <-> integer nanoseconds, exactly.

`ts` and `dur` are always microseconds; `displayTimeUnit` is only a viewer's wish. A float64 holds
microseconds with three decimals exactly up to 2**43 (102 days): relative times are fine, absolute
ones (1.7e15) are not and are taken from the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.reader import EventBlock
from megatron.torch_trace.reader.event import Number, TimeText, decode_loosely, decode_strictly

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


def block_times(block: EventBlock[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`ts` and `dur` of a block's events in integer nanoseconds.

    Returns:
        Two int64 arrays of the length of `block.events`; NO_TIME where there is none. `ts` is
        relative to the file's `baseTimeNanoseconds`, or absolute if it has none.
    """
    starts = _from_numbers([event.ts for event in block.events])
    durations = _from_numbers([event.dur for event in block.events])
    if starts is None or durations is None:
        texts = _time_texts(block)
        if starts is None:
            starts = _from_texts([_raw_text(text.ts) for text in texts])
        if durations is None:
            durations = _from_texts([_raw_text(text.dur) for text in texts])
    return starts, durations


def _from_numbers(values: Sequence[Number]) -> NDArray[np.int64] | None:
    """Nanoseconds, or None if the numbers may have lost digits on their way here."""
    try:
        microseconds = np.array(values, dtype=np.float64)
    except (ValueError, OverflowError):
        return None
    missing = np.isnan(microseconds)
    if missing.any():
        microseconds[missing] = 0.0
    if np.abs(microseconds).max(initial=0.0) >= EXACT_FLOAT_US:
        if not all(type(value) is int and abs(value) < 1 << 52 for value in values if value):
            return None
        ns = microseconds.astype(np.int64) * 1000
    else:
        # Not microseconds * 1000: from 2**42 to 2**52 / 1000 that product ends in .5 for odd ns.
        whole = np.floor(microseconds)
        ns = whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000.0).astype(
            np.int64
        )
    ns[missing] = NO_TIME
    return ns


def _time_texts(block: EventBlock[Any]) -> list[TimeText]:
    found = decode_strictly(block.text, TimeText) if block.text is not None else None
    if found is None or len(found) != len(block.events):
        found = [decode_loosely(text, TimeText) for text in block.texts]
    return found


def _raw_text(raw: Any) -> str:
    return bytes(raw).decode() if raw else ""


def _from_texts(texts: list[str]) -> NDArray[np.int64]:
    values = [ns_of_text(text) if text else None for text in texts]
    return np.array([NO_TIME if value is None else value for value in values], dtype=np.int64)
