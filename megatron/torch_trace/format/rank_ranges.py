# SPDX-License-Identifier: Apache-2.0
"""How ranks are written by people, for `--torch-profile-ranks` and for `--rank`.

3        this rank
0-7      these, the last one included
8-63:8   every eighth of 8 to 63
"""

from __future__ import annotations

import re

MOST_RANKS = 1 << 20
"""Ten times the largest jobs: a rank that is missing costs memory, so no number from outside may
ask for more."""

_RANKS = re.compile(r"(?P<first>[0-9]+)(?:-(?P<last>[0-9]+)(?::(?P<stride>[0-9]+))?)?")
_MOST_DIGITS = 18


def rank_range(text: str) -> range | None:
    """The ranks that a word means, empty if it means none; None if it is no rank and no range."""
    match = _RANKS.fullmatch(text)
    if match is None or any(len(one) > _MOST_DIGITS for one in match.groups("")):
        return None
    first, last = int(match["first"]), int(match["last"] or match["first"])
    stride = int(match["stride"] or 1)
    return range(first, last + 1, stride) if stride else range(0)
