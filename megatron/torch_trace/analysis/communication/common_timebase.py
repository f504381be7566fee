# SPDX-License-Identifier: Apache-2.0
"""One timeline for all ranks: times of one base, clocks aligned as an analysis aligns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from megatron.torch_trace.analysis.communication.clocks import clocks_of
from megatron.torch_trace.analysis.communication.rank_calls import RankCalls
from megatron.torch_trace.wording import ranks as shown

ABSOLUTE_NS = 1_000_000_000_000_000_000
"""Times from here on (the year 2001) are absolute; relative ones stay below three months."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """What one rank's trace says about time.

    Args:
        base_ns: its base time, 0 if it has none.
        first_ns: its first event, relative to that; None without events.
        calls: its collectives; None if there is nothing to analyse, or clocks are to be left alone.
    """

    base_ns: int
    first_ns: int | None
    calls: RankCalls | None


@dataclass(frozen=True, slots=True)
class Timebase:
    """How ranks' times become one timeline's.

    Args:
        base_ns: the earliest base time of a trace, ns since 1970; 0 if none says it.
        absolute_ns: rank -> what is added to times of its trace for ns since 1970.
        clock_ns: rank -> how much of that aligns its clock; None if nothing tells.
        zero_ns: the first event of all, ns since 1970 where the traces tell that.
        notes: what the user should know, a sentence each.
    """

    base_ns: int
    absolute_ns: dict[int, int]
    clock_ns: dict[int, int | None]
    zero_ns: int
    notes: tuple[str, ...]

    @property
    def offset_ns(self) -> dict[int, int]:
        """Rank -> what is added to times of its trace, so that the first event of all is at 0."""
        return {rank: at - self.zero_ns for rank, at in self.absolute_ns.items()}

    @property
    def epoch_ns(self) -> int | None:
        """Ns since 1970 at the first event of all; None if the traces do not tell."""
        return self.zero_ns if self.zero_ns >= ABSOLUTE_NS else None


def common_timebase(ranks: Mapping[int, RankTimes], *, align: bool = True) -> Timebase:
    """Put ranks on one timeline.

    A rank without a base has absolute times (torch before 2.4), or has lost its base: then its
    collectives tell it, or it is taken to have the others'.
    """
    clocks = _clocks(ranks) if align else dict.fromkeys(ranks)
    notes: list[str] = []
    base = min((one.base_ns for one in ranks.values() if one.base_ns), default=0)
    dated = bool(base) or any((one.first_ns or 0) >= ABSOLUTE_NS for one in ranks.values())
    absolute = {}
    for rank, one in ranks.items():
        own = one.base_ns
        if not own and dated and (one.first_ns or 0) < ABSOLUTE_NS and clocks[rank] is None:
            own = base
            notes.append(
                f"rank {rank}: the trace has no baseTimeNanoseconds; the one of the other ranks is "
                "taken."
            )
        absolute[rank] = own + (clocks[rank] or 0)
    unknown = tuple(rank for rank, clock in clocks.items() if clock is None)
    if align and unknown and len(ranks) > 1:
        who = f"rank {unknown[0]} has" if len(unknown) == 1 else f"ranks {shown(unknown)} have"
        clocks_of_them = "its clock was" if len(unknown) == 1 else "their clocks were"
        notes.append(
            f"{who} too few collectives in common with other ranks here, so {clocks_of_them} left "
            "as recorded."
        )
    firsts = [
        absolute[rank] + one.first_ns for rank, one in ranks.items() if one.first_ns is not None
    ]
    return Timebase(base, absolute, clocks, min(firsts, default=0), tuple(notes))


def _clocks(ranks: Mapping[int, RankTimes]) -> dict[int, int | None]:
    calls = {rank: one.calls for rank, one in ranks.items() if one.calls is not None}
    known: dict[int, int | None] = dict.fromkeys(ranks)
    if len(calls) > 1:
        known |= {clock.rank: clock.offset_ns for clock in clocks_of(calls)}
    return known
