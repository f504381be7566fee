# SPDX-License-Identifier: Apache-2.0
"""Who is late, and what that costs the others.

    rank 0   [######--------)     waits 8        # until the last one has arrived
    rank 1       [##--------)     waits 2        - the transfer itself
    rank 2         [--------)     arrives last, imposes 10 on the others

All ranks leave a collective together, so the wait of a rank is its duration minus the shortest one,
whatever its clock shows. Who arrived last is who began last on the common clock; of ranks that have
none in common, who was in the call for the shortest time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from megatron.torch_trace.analysis.communication.arrivals import (
    Arrivals,
    LabelArrivals,
    RankArrivals,
    arrivals_of,
    arrivals_of_rank,
)
from megatron.torch_trace.analysis.communication.clocks import Clock, align, unknown_clocks
from megatron.torch_trace.analysis.communication.matching import MatchedCalls
from megatron.torch_trace.analysis.communication.worst_call import WorstCall, worst_call
from megatron.torch_trace.analysis.timeline.code_columns import subtract_by_code
from megatron.torch_trace.analysis.timeline.moment import Moment
from megatron.torch_trace.columns.intervals import Ints, ints


@dataclass(frozen=True, slots=True)
class Lateness:
    """One rank in the calls of one collective; see `Straggler`.

    Args:
        dimension, collective: which calls.
        calls, last_arrivals, imposed_wait_ns, own_wait_ns: of these calls only.
        worst: the call in which the others waited longest for this rank, from the first arrival to
            its end; None if they never did.
    """

    dimension: str
    collective: str
    calls: int
    last_arrivals: int
    imposed_wait_ns: int
    own_wait_ns: int
    worst: Moment | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Straggler:
    """One rank's lateness over all matched collectives.

    Args:
        rank: the rank.
        calls: matched calls in which arrivals were further apart than the clocks' error.
        last_arrivals: of these, how often this rank came last.
        imposed_wait_ns: sum, over the calls in which it came last, of the waits of all others.
        delay_ns: of what it imposed, the mean over the others in each call: how much later the
            others could go on because of it.
        own_wait_ns: how long it waited itself.
        dimension: the dimension in which most of what it imposed lies, None if it imposed nothing.
        collective: the collective there.
        calls_there, share_there: calls of that dimension and collective, and how much of them this
            rank was last in.
        by_collective: the same by dimension and collective, where it has matched calls.
        peers: the other ranks in the first of these calls: who waits for it.
    """

    rank: int
    calls: int
    last_arrivals: int
    imposed_wait_ns: int
    delay_ns: int
    own_wait_ns: int
    dimension: str | None
    collective: str | None
    calls_there: int
    share_there: float | None
    by_collective: tuple[Lateness, ...] = field(default=(), compare=False)
    peers: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Waits:
    """Result over all ranks.

    Args:
        clocks: by rank.
        stragglers: by imposed wait, the worst first; ranks without matched calls are left out.
        matched_calls: calls that at least two ranks have.
        wait: for each row of the matched calls, ns.
        shortest: for each call, the shortest duration over its ranks, ns.
        worst: the call in which ranks waited longest in sum.
    """

    clocks: tuple[Clock, ...]
    stragglers: tuple[Straggler, ...]
    matched_calls: int
    wait: Ints
    shortest: Ints
    worst: WorstCall | None = None


def find_stragglers(matched: MatchedCalls, bases: Mapping[int, int] | None = None) -> Waits:
    """Waits, clocks and stragglers over the ranks of `matched`.

    Args:
        matched: calls found on several ranks.
        bases: rank -> base time of its trace, ns since the epoch; moments need it.

    Returns:
        Times in ns; `wait` of shape (rows of `matched`,), `shortest` of shape (calls,). Sends,
        receives and broadcasts wait 0. Source: docs/computed.md, "Stragglers".
    """
    if not len(matched):
        return Waits(unknown_clocks(matched), (), 0, ints([]), ints([]))
    first = matched.first
    wait = matched.end - matched.start
    shortest = np.minimum.reduceat(wait, first)
    subtract_by_code(wait, shortest, matched.call)
    if not matched.symmetric.all():
        wait[~matched.symmetric] = 0
    # Of many ranks these arrays are the largest of all: one is written to twice.
    rows = np.empty_like(wait)
    clocks, offset, one_clock = align(matched, rows)
    calls = arrivals_of(matched, first, wait, (clocks, offset, one_clock), rows)
    stragglers, worst = _stragglers(calls, bases or {})
    return Waits(
        clocks=clocks,
        stragglers=stragglers,
        worst=worst,
        matched_calls=len(first),
        wait=wait,
        shortest=shortest,
    )


def _stragglers(
    calls: Arrivals, bases: Mapping[int, int]
) -> tuple[tuple[Straggler, ...], WorstCall | None]:
    matched = calls.matched
    found = []
    for position, rank in enumerate(matched.ranks):
        one = _straggler(
            calls, arrivals_of_rank(calls, matched.rows_of[position]), rank, bases.get(rank)
        )
        if one is not None:
            found.append(one)
    stragglers = tuple(sorted(found, key=lambda s: (-s.imposed_wait_ns, s.rank)))
    total = calls.total
    total[~calls.counts] = 0
    return stragglers, worst_call(matched, calls.first, total, calls.wait, calls.start, bases)


def _straggler(calls: Arrivals, own: RankArrivals, rank: int, base: int | None) -> Straggler | None:
    """None for a rank without symmetric calls."""
    if not own.by_label:
        return None
    worst = max(own.by_label, key=lambda one: one.imposed_ns)
    has_worst = bool(worst.imposed_ns)
    dimension, collective = calls.names[worst.label] if has_worst else (None, None)
    return Straggler(
        rank=rank,
        calls=sum(one.calls for one in own.by_label),
        last_arrivals=sum(one.last_arrivals for one in own.by_label),
        imposed_wait_ns=sum(one.imposed_ns for one in own.by_label),
        delay_ns=own.delay_ns,
        own_wait_ns=sum(one.wait_ns for one in own.by_label),
        dimension=dimension,
        collective=collective,
        calls_there=worst.calls if has_worst else 0,
        share_there=worst.last_arrivals / worst.calls if has_worst else None,
        by_collective=tuple(_lateness(calls, own, one, base) for one in own.by_label),
        peers=_peers(calls, own, worst, rank) if has_worst else (),
    )


def _peers(calls: Arrivals, own: RankArrivals, of: LabelArrivals, rank: int) -> tuple[int, ...]:
    """The other ranks in the first of these calls that counts; all of them are of one group."""
    matched = calls.matched
    call = int(own.call[of.rows][own.counted[of.rows].argmax()])
    begin = int(matched.first[call])
    here = matched.rank[begin : begin + int(matched.size[call])].tolist()
    return tuple(one for one in (matched.ranks[position] for position in here) if one != rank)


def _lateness(calls: Arrivals, own: RankArrivals, of: LabelArrivals, base: int | None) -> Lateness:
    worst = None
    if base is not None and of.imposed_ns:
        at = of.rows.start + int(own.imposed[of.rows].argmax())
        row, call = int(own.rows[at]), int(own.call[at])
        end = int(calls.matched.end[row])
        start = int(calls.matched.start[row] - (calls.start[row] - calls.earliest[call]))
        worst = Moment(start - base, end - start)
    return Lateness(
        *calls.names[of.label],
        calls=of.calls,
        last_arrivals=of.last_arrivals,
        imposed_wait_ns=of.imposed_ns,
        own_wait_ns=of.wait_ns,
        worst=worst,
    )


@dataclass(frozen=True, slots=True)
class RankWaits:
    """What one rank's calls waited.

    Args:
        matched: which rows of its RankCalls are on other ranks too.
        wait, shortest: for each row, ns; 0 and its own duration where it is not.
    """

    matched: np.ndarray
    wait: Ints
    shortest: Ints


def waits_of(matched: MatchedCalls, waits: Waits, position: int, duration: Ints) -> RankWaits:
    """The waits of one rank.

    Args:
        matched, waits: of all ranks.
        position: of the rank in the sorted list of ranks.
        duration: ns of each row of its RankCalls, shape (rows,); what is returned has this shape.
    """
    mine = matched.rows_of[position]
    rows = matched.row[mine]
    result = RankWaits(np.zeros(len(duration), dtype=bool), np.zeros_like(duration), duration + 0)
    result.matched[rows] = True
    result.wait[rows] = waits.wait[mine]
    result.shortest[rows] = waits.shortest[matched.call[mine]]
    return result
