# SPDX-License-Identifier: Apache-2.0
"""What the monitor costs, by blocks of iterations with it and without it (watch.py)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from statistics import median
from typing import Any

from watched_rank import BLOCK, FIRST_BLOCK, SWITCH, is_on


def blocks(begins: dict[int, float]) -> Iterator[tuple[int, bool, float]]:
    """First iteration, whether the monitor was on, and seconds of whole blocks, without their
    first iterations."""
    first = FIRST_BLOCK
    while first + BLOCK in begins:
        yield first, is_on(first), begins[first + BLOCK] - begins[first + SWITCH]
        first += BLOCK


def cost(
    begins: dict[int, float], in_parts: set[int], windows: list[tuple[int, int]]
) -> dict[str, Any] | None:
    """Pairs of neighbouring blocks; those in which a window was recorded do not count.

    Means hold whatever made a block slow; medians leave out iterations that are measured in parts,
    whose cost comes from their share; on a CPU all of them are.
    """
    whole = [*blocks(begins)]
    known = not all(at in in_parts for first, on, _ in whole if on for at in _numbers(first))
    means, medians, on_ms, off_ms, parts_ms = [], [], [], [], []
    for one, other in zip(whole[::2], whole[1::2], strict=False):
        if any(at - 4 < one[0] + 2 * BLOCK and one[0] <= last + 8 for at, last in windows):
            continue
        (on, _, s_on), (off, _, s_off) = (one, other) if one[1] else (other, one)
        means.append(100.0 * (s_on / s_off - 1.0))
        usual_on, usual_off = (
            [
                begins[at + 1] - begins[at]
                for at in _numbers(block)
                if not known or at not in in_parts
            ]
            for block in (on, off)
        )
        parts_ms += [begins[at + 1] - begins[at] for at in _numbers(on) if known and at in in_parts]
        medians.append(100.0 * (median(usual_on) / median(usual_off) - 1.0))
        on_ms += usual_on
        off_ms += usual_off
    if len(means) < 2:
        return None
    share = len(parts_ms) / len(parts_ms + on_ms)
    longer = 100.0 * (median(parts_ms) / median(on_ms) - 1.0) if parts_ms else 0.0
    return {
        "pairs": len(means),
        "iteration_ms_without": round(1e3 * median(off_ms), 3),
        "means_pct": interval(means),
        "without_parts_pct": interval(medians),
        "in_parts_longer_pct": round(longer, 2),
        "in_parts_share": round(share, 3),
        "all_pct": round(median(medians) + share * longer, 3),
        "pairs_pct": [round(one, 2) for one in means],
    }


def _numbers(first: int) -> range:
    return range(first + SWITCH, first + BLOCK)


def interval(pairs: list[float]) -> list[float]:
    """The median, and where it lies in 95 of 100 draws."""
    draw = random.Random(0)
    drawn = sorted(median(draw.choices(pairs, k=len(pairs))) for _ in range(2000))
    return [round(one, 3) for one in (median(pairs), drawn[50], drawn[-51])]
