# SPDX-License-Identifier: Apache-2.0
"""Which rank left its usual order of calls: it tells where as many ranks call one thing as another.

A training calls the same collectives in every iteration. So what a rank calls after a long row of
calls is what it called after the same row before. A rank that skips a collective, or calls it with
another size, breaks this habit; a rank that waits for it does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from megatron.torch_trace.flight_recorder.record import Call

_LEAST_ROW = 6
"""Calls that must have been the same before one that is not."""
_MOST_CALLS = 2000
_MOST_RANKS = 64
"""Whose habits are looked at."""


@dataclass(frozen=True, slots=True)
class Unusual:
    """A call that breaks a rank's habit.

    Args:
        call: this one.
        usual: what followed on the same row of calls before.
    """

    call: Call
    usual: Call


def unusual_calls(
    calls: Mapping[int, Sequence[Call]], descriptions: Mapping[str, str]
) -> dict[int, tuple[Unusual, ...]]:
    """By rank, the calls that break the rank's habit, and that break no other rank's; by order.

    Args:
        calls: of each rank, by order.
        descriptions: of groups, by their names. Ranks call the same thing in groups of their own:
            the data-parallel group of one has another name than that of another.
    """
    breaks = {}
    for rank, mine in [*calls.items()][:_MOST_RANKS]:
        kept = mine[-_MOST_CALLS:]
        kinds = [(call.group, call.name, call.sizes) for call in kept]
        breaks[rank] = [Unusual(kept[at], kept[usual]) for at, usual in _breaks(kinds)]

    def same(one: Unusual) -> tuple[str, int, str, str]:
        call = one.call
        where = descriptions.get(call.group) or call.group
        return where, call.sequence, call.name, call.sizes

    # Evaluation is an unusual row of calls on all ranks.
    callers = Counter(key for mine in breaks.values() for key in {same(one) for one in mine})
    own = {r: tuple(one for one in mine if callers[same(one)] == 1) for r, mine in breaks.items()}
    return {rank: mine for rank, mine in own.items() if mine}


def _breaks(kinds: Sequence[tuple[str, str, str]]) -> list[tuple[int, int]]:
    """Calls that are not what followed on the longest row of equal calls before, and that."""
    import numpy as np

    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    code = np.array([numbers[kind] for kind in kinds], dtype=np.int64)
    # row[j]: so many calls before j equal those before the one that is looked at.
    row = np.zeros(len(code) + 1, dtype=np.int64)
    found = []
    for at, kind in enumerate(code):
        longest = int(row[:at].max(initial=0))
        after = np.flatnonzero(row[:at] == longest)
        if longest >= _LEAST_ROW and not (code[after] == kind).any():
            found.append((at, int(after[-1])))
        row[1:] = np.where(code == kind, row[:-1] + 1, 0)
        row[0] = 0
    return found
