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
    total = np.where(calls.counts, calls.total, 0)
    return stragglers, worst_call(matched, calls.first, total, calls.wait, calls.start, bases)


def _straggler(calls: Arrivals, own: RankArrivals, rank: int, base: int | None) -> Straggler | None:
    """None for a rank without symmetric calls."""
    symmetric = own.where(calls.matched.symmetric[own.rows])
    if not len(symmetric.rows):
        return None
    by_label = np.bincount(own.label, weights=own.imposed, minlength=len(calls.names))
    worst = int(by_label.argmax())
    there = own.counted & (own.label == worst)
    calls_there = int(there.sum())
    has_worst = bool(by_label[worst])
    return Straggler(
        rank=rank,
        calls=int(own.counted.sum()),
        last_arrivals=int(own.last.sum()),
        imposed_wait_ns=int(own.imposed.sum()),
        delay_ns=int(own.delay.sum()),
        own_wait_ns=int(own.wait.sum()),
        dimension=calls.names[worst][0] if has_worst else None,
        collective=calls.names[worst][1] if has_worst else None,
        calls_there=calls_there if has_worst else 0,
        share_there=float(own.last[there].sum() / calls_there) if has_worst else None,
        by_collective=tuple(
            _lateness(calls, calls.names[code], rows, base) for code, rows in symmetric.by_label()
        ),
        peers=_peers(calls, own.call[there], rank) if has_worst else (),
    )


def _peers(calls: Arrivals, of: Ints, rank: int) -> tuple[int, ...]:
    """The other ranks in the first of these calls, of which all are of one group."""
    matched, first = calls.matched, calls.first
    if not len(of):
        return ()
    call = int(of[0])
    end = first[call + 1] if call + 1 < len(first) else len(matched)
    here = (matched.ranks[position] for position in matched.rank[first[call] : end])
    return tuple(one for one in here if one != rank)


def _lateness(
    calls: Arrivals, name: tuple[str, str], own: RankArrivals, base: int | None
) -> Lateness:
    at = int(own.imposed.argmax())
    worst = None
    if base is not None and own.imposed[at]:
        row, call = int(own.rows[at]), int(own.call[at])
        end = int(calls.matched.end[row])
        start = int(calls.matched.start[row] - (calls.start[row] - calls.earliest[call]))
        worst = Moment(start - base, end - start)
    return Lateness(
        *name,
        calls=int(own.counted.sum()),
        last_arrivals=int(own.last.sum()),
        imposed_wait_ns=int(own.imposed.sum()),
        own_wait_ns=int(own.wait.sum()),
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
