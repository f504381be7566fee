# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them; `unknown` where there is none."""

from __future__ import annotations

UNKNOWN = "unknown"
NONE = "-"


def percent(share: float | None) -> str:
    """0.234 -> `23 %`; below 10 with a decimal: `3.4 %`; `100 %` only of all of it."""
    if share is None:
        return UNKNOWN
    value = 100 * share
    if 99.5 <= value < 100:
        return f"{value:.1f} %" if value < 99.95 else ">99.9 %"
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.1f} %"


def milliseconds(ns: float | None) -> str:
    """Always ms, so that a column can be compared: `1234`, `12.3`, `0.045`."""
    if ns is None:
        return NONE
    value = ns / 1e6
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def duration(ns: float | None) -> str:
    """`1.23 s`, `45.6 ms`, `7.8 us`, in three digits."""
    if ns is None:
        return UNKNOWN
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        value = ns / scale
        # What rounds to 1000 of a unit is 1 of the next.
        if abs(value) >= 0.9995:
            return f"{_three_digits(value)} {unit}"
    return f"{ns:.0f} ns"


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def size(count: float | None) -> str:
    """Bytes in decimal units: `1.23 GB`; `unknown`."""
    if count is None:
        return UNKNOWN
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{_three_digits(count)} TB"


def speed(gbps: float | None, *, with_waiting: bool = False) -> str:
    """GB/s in three digits; `-` where there is none, `<0.1` for messages too small to say much.

    Args:
        with_waiting: an unknown part of the time is waiting for other ranks, so it is `>` that.
    """
    if gbps is None or (with_waiting and gbps < 0.1):
        return NONE
    return "<0.1" if gbps < 0.1 else ">" * with_waiting + _three_digits(gbps)


def flop_rate(tflops: float | None) -> str:
    """TFLOP/s in three digits; `-` where there is none."""
    if tflops is None:
        return NONE
    return _three_digits(tflops)


def count(number: float) -> str:
    """`1,234`; a mean that is no whole number with one decimal."""
    return f"{number:,.0f}" if number == int(number) or number >= 100 else f"{number:,.1f}"


def ranks(numbers: tuple[int, ...], most: int = 12) -> str:
    """`0-3, 8`: runs are joined; a long list ends in `...`."""
    parts: list[str] = []
    start = previous = None
    for number in (*numbers, None):
        if previous is not None and number is not None and number == previous + 1:
            previous = number
            continue
        if start is not None and previous is not None:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = number
    return ", ".join(parts) if len(parts) <= most else ", ".join(parts[:most]) + ", ..."
