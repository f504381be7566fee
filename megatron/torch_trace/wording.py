# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them, with a unit; `unknown` where there is none.

One rule for all: three digits from 1 on, whole numbers in full, two digits below 1, never an
exponent; shares have two. A column keeps its last zeros, so that its numbers can be compared.

Every text that a user reads takes its sizes, durations, shares and counted nouns from here, so that
one thing is written in one way in the log, on a terminal and on a page.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

UNKNOWN = "unknown"
_UNSEEN = [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
"""Characters that move a terminal's cursor, colour it, or turn the direction of its text."""
_VISIBLE = {code: chr(code).encode("unicode_escape").decode() for code in _UNSEEN}
NONE = "-"

_SIZES = ("B", "kB", "MB", "GB", "TB")
_DURATIONS = (("s", 1e9), ("ms", 1e6), ("us", 1e3))
_NEXT_UNIT = 999.5
"""What rounds to 1000 of a unit is 1 of the next."""


def visible(text: object, *, lines: bool = False) -> str:
    """Text from a file or a path as it may be shown: `\\x1b` and the like instead of themselves.

    Args:
        lines: its ends of lines are ours.
    """
    shown = str(text).translate({**_VISIBLE, 10: "\n"} if lines else _VISIBLE)
    try:
        return path_text(shown)
    except UnicodeEncodeError:
        # Half of a character out of a trace, which no terminal takes either.
        return shown.encode("utf-8", "backslashreplace").decode()


def path_text(path: Path | str) -> str:
    """A path for JSON and pages: bytes that are no UTF-8 are written out as `\\xff`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def number(value: float) -> str:
    """In a sentence: `0.045`, `0.88`, `4.57`, `480`, `1,234`."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1 else f"{value:.2g}" if value else "0"


def column(value: float) -> str:
    """In a column, with its last zeros: `1,234`, `12.0`, `4.50`, `0.88`, `0.045`, `<0.001`, `0`."""
    if not value:
        return "0"
    if value < 0.0005:
        return "<0.001"
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def percent(share: float | None) -> str:
    """0.234 -> `23 %`; below 10 with a decimal: `3.4 %`, `<0.1 %`; `100 %` only of all of it."""
    if share is None:
        return UNKNOWN
    value = 100 * share
    if not value:
        return "0 %"
    if 0 < value < 0.05:
        return "<0.1 %"
    if 99.5 <= value < 100:
        return f"{value:.1f} %" if value < 99.95 else ">99.9 %"
    return f"{value:,.0f} %" if value >= 9.95 else f"{value:.1f} %"


def milliseconds(ns: float | None) -> str:
    """Always ms, so that a column can be compared: `1,234`, `12.3`, `0.045`, `<0.001`, `0`."""
    return NONE if ns is None else column(ns / 1e6)


def microseconds(ns: float | None) -> str:
    """The same, always in us."""
    return NONE if ns is None else column(ns / 1e3)


def duration(ns: float | None) -> str:
    """`21,600 s`, `1.23 s`, `45.6 ms`, `7.8 us`, `0 s`."""
    if ns is None:
        return UNKNOWN
    if not ns:
        return "0 s"
    for unit, scale in _DURATIONS:
        if abs(ns) >= _NEXT_UNIT * scale / 1e3:
            return f"{number(ns / scale)} {unit}"
    return f"{ns:.0f} ns"


def seconds(value: float) -> str:
    """The same of a duration in seconds."""
    return duration(1e9 * value)


def size(count: float | None) -> str:
    """Bytes in decimal units, as disks and `ls --si` count: `1.23 GB`."""
    if count is None:
        return UNKNOWN
    for unit in _SIZES[:-1]:
        if abs(count) < _NEXT_UNIT:
            return f"{count:.0f} {unit}" if unit == "B" else f"{number(count)} {unit}"
        count /= 1000
    return f"{number(count)} {_SIZES[-1]}"


def megabytes(count: float) -> str:
    """The same of a count in MB."""
    return size(1e6 * count)


def speed(gbps: float | None, *, with_waiting: bool = False) -> str:
    """GB/s; `-` where there is none, `<0.1` for messages too small to say much.

    Args:
        with_waiting: an unknown part of the time is waiting for other ranks, so it is `>` that.
    """
    if gbps is None or (with_waiting and gbps < 0.1):
        return NONE
    return "<0.1" if gbps < 0.1 else ">" * with_waiting + number(gbps)


def flop_rate(tflops: float | None) -> str:
    """TFLOP/s; `-` where there is none."""
    return NONE if tflops is None else number(tflops)


def count(amount: float) -> str:
    """`1,234`; a mean that is no whole number with one decimal."""
    return f"{amount:,.0f}" if amount == int(amount) or amount >= 100 else f"{amount:,.1f}"


def counted(amount: int, noun: str, plural: str | None = None) -> str:
    """`1 trace`, `1,234 traces`; `plural` where it does not end in s."""
    return f"1 {noun}" if amount == 1 else f"{amount:,} {plural or f'{noun}s'}"


def part_of_iteration(name: str) -> str:
    """A part that the monitor measures: `data` -> `the data loader`."""
    return {
        "pipeline": "pipeline transfers",
        "gradients": "the gradient reduction",
        "parameters": "the parameter gather",
        "optimizer": "the optimizer",
        "data": "the data loader",
        "other": "the rest of the iteration",
    }.get(name, name)


def iterations(shown: object) -> str:
    """`iteration 3`, `iterations 3-4`; of a window, or of numbers as they are shown."""
    return f"iteration {shown}" if str(shown).isdecimal() else f"iterations {shown}"


def ranks(numbers: tuple[int, ...], most: int = 12) -> str:
    """`0-3, 8`: runs are joined; a long list ends in `...`."""
    parts: list[str] = []
    start = previous = None
    for rank in (*numbers, None):
        if previous is not None and rank is not None and rank == previous + 1:
            previous = rank
            continue
        if start is not None and previous is not None:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = rank
    return ", ".join(parts) if len(parts) <= most else ", ".join(parts[:most]) + ", ..."


def listed(values: Sequence[int] | Sequence[str], between: str = ", ", *, most: int = 6) -> str:
    """The first few, and how many there are more."""
    shown = between.join(map(str, values[:most]))
    more = len(values) - most
    return f"{shown}{between}and {more:,} more" if more > 0 else shown or "none"


def nearest(word: str, allowed: Iterable[str]) -> str:
    """The end of a sentence about a word that is none of these: the one meant, else all of them."""
    from difflib import get_close_matches

    known = list(allowed)
    near = get_close_matches(word.lower(), known, n=1)
    near = near or [one for one in known if word and word.lower() in one.split("_")][:1]
    return f"did you mean {near[0]}?" if near else f"there are {listed(known, most=30)}."


def cut_in_the_middle(text: str, width: int, mark: str = "…") -> str:
    """At most `width` characters: names of kernels and files differ at their ends.

    Args:
        text: what may be too long.
        width: characters that there is room for.
        mark: what stands for the rest.
    """
    if len(text) <= width:
        return text
    kept = max(0, width - len(mark))
    head = (kept + 1) // 2
    return text[:head] + mark + text[len(text) - (kept - head) :]
