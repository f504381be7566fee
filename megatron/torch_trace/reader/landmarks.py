# SPDX-License-Identifier: Apache-2.0
"""Where events seem to begin in damaged text, found once; and how much may be read in vain.

Whoever looks for the next event from each offset anew, or reads to the end of the text in every
attempt that fails, takes quadratic time on text that somebody damaged cleverly enough.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property

EVENT_KEYS = "ph|name|cat|ts|pid|tid|dur|id|args|bp|s"

_EVENT_START = re.compile(r'\{\s*"(?:' + EVENT_KEYS + r')"\s*:')
_BEFORE_EVENT = ",}][{"
_VAIN_READINGS = 8


class Landmarks:
    """Offsets in `text` at which an event can begin."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._trimmed = (0, 0)

    @cached_property
    def starts(self) -> list[int]:
        """Every `{` that a key of an event follows."""
        return [match.start() for match in _EVENT_START.finditer(self.text)]

    @cached_property
    def clear_starts(self) -> list[int]:
        """Those that stand where an event may: behind a comma, a bracket or a line's end."""
        found, before = [], 0
        for start in self.starts:
            gap = self.text[before:start]
            written = gap.rstrip()
            if written[-1:] in _BEFORE_EVENT or "\n" in gap[len(written) :]:
                found.append(start)
            before = start
        return found

    def next_start(self, at: int) -> int:
        """The first start at `at` or behind it, or -1."""
        return first_from(self.starts, at)

    def next_clear_start(self, at: int) -> int:
        """The first clear start at `at` or behind it, or -1."""
        return first_from(self.clear_starts, at)

    def without_commas(self, end: int) -> int:
        """`end` without the commas and blanks before it."""
        if self._trimmed[0] != end:
            before = end
            while before and self.text[before - 1] in " \t\n\r,":
                before -= 1
            self._trimmed = (end, before)
        return self._trimmed[1]


def first_from(offsets: list[int], at: int) -> int:
    """The first of these offsets in rising order that is `at` or behind it, or -1."""
    index = bisect_right(offsets, at - 1)
    return offsets[index] if index < len(offsets) else -1


class Allowance:
    """How many characters may be read in attempts that fail: a few times the text.

    Args:
        size: characters of the text.
    """

    def __init__(self, size: int) -> None:
        self.left = _VAIN_READINGS * size

    def __bool__(self) -> bool:
        return self.left > 0

    def spend(self, characters: int) -> None:
        """An attempt that failed has read so many."""
        self.left -= characters
