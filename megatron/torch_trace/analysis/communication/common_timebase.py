# SPDX-License-Identifier: Apache-2.0
"""One timeline for all ranks: clocks aligned as an analysis aligns them, the first event at 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from megatron.torch_trace.analysis.communication.matching import RankCalls, match
from megatron.torch_trace.analysis.communication.stragglers import find_stragglers

ABSOLUTE_NS = 1_000_000_000_000_000_000
"""Times from here on (the year 2001) are absolute; relative ones stay below three months."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """What one rank's trace says about time.

    Args:
        base_ns: its base time, 0 if it has none.
        first_ns: its first event, relative to that; None without events.
        calls: its collectives; None if there is nothing to analyse.
    """

    base_ns: int
    first_ns: int | None
    calls: RankCalls | None


@dataclass(frozen=True, slots=True)
class Timebase:
    """How ranks' times become one timeline's.

    Args:
        offset_ns: rank -> what is added to times of its trace.
        clock_ns: rank -> how much of that aligns its clock; None if nothing tells.
        epoch_ns: ns since 1970 at time 0; None if the traces do not tell.
        notes: what the user should know, a sentence each.
    """

    offset_ns: dict[int, int]
    clock_ns: dict[int, int | None]
    epoch_ns: int | None
    notes: tuple[str, ...]


def common_timebase(ranks: Mapping[int, RankTimes]) -> Timebase:
    """Put ranks on one timeline."""
    clocks = _clocks(ranks)
    notes: list[str] = []
    base = min((one.base_ns for one in ranks.values() if one.base_ns), default=0)
    absolute = {}
    for rank, one in ranks.items():
        own = one.base_ns
        if not own and base and (one.first_ns or 0) < ABSOLUTE_NS and clocks[rank] is None:
            own = base
            notes.append(
                f"rank {rank}: its trace says no baseTimeNanoseconds; taken to be the same as the "
                "others'."
            )
        absolute[rank] = own + (clocks[rank] or 0)
    unknown = [str(rank) for rank, clock in clocks.items() if clock is None]
    if unknown and len(ranks) > 1:
        notes.append(
            f"rank {', '.join(unknown)}: shares too few collectives with the others here, so the "
            "clock was left as it is."
        )
    firsts = [
        absolute[rank] + one.first_ns for rank, one in ranks.items() if one.first_ns is not None
    ]
    zero = min(firsts, default=0)
    return Timebase(
        offset_ns={rank: at - zero for rank, at in absolute.items()},
        clock_ns=clocks,
        epoch_ns=zero if zero >= ABSOLUTE_NS else None,
        notes=tuple(notes),
    )


def _clocks(ranks: Mapping[int, RankTimes]) -> dict[int, int | None]:
    calls = {rank: one.calls for rank, one in ranks.items() if one.calls is not None}
    known: dict[int, int | None] = dict.fromkeys(ranks)
    if len(calls) > 1:
        known |= {clock.rank: clock.offset_ns for clock in find_stragglers(match(calls)).clocks}
    return known
