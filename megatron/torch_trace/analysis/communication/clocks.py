# SPDX-License-Identifier: Apache-2.0
"""What the clocks of ranks differ by, from the ends of collectives that all leave together.

All ranks leave a collective together (measured: within 7 us on one host), whenever they entered it.
So the median over matched collectives of the difference of their ends is the clocks' difference.

    rank 0   [--- all-reduce 1 ---]        ends at 100, 220, 340
    rank 1      [-all-reduce 1-]           ends at 150, 271, 389      offset of rank 1: -50

Whoever needs the clocks of ranks asks here: `analyze`, `convert`, `export` and `merge --align`
answer alike. It goes on columns, for thousands of ranks; ranks that are not connected to the lowest
one have a common clock among themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.communication.matching import MatchedCalls, match
from megatron.torch_trace.analysis.communication.rank_calls import RankCalls
from megatron.torch_trace.analysis.timeline.code_columns import (
    add_by_code,
    reduce_by_code,
    subtract_by_code,
)
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.integer_arrays import distinct

_LEAST_MATCHES = 3
_MOST_SORTED = 1 << 18
"""Rows at a time."""
_MOST_KEY = 1 << 62


@dataclass(frozen=True, slots=True)
class Clock:
    """What is added to a rank's times so that they agree with those of another.

    Args:
        rank: the rank.
        offset_ns: None if it shares fewer than three collectives with any other.
        error_ns: median distance of this rank's collective ends from the calls' median end, after
            the offset; None if unknown.
        calls: matched calls that say so.
        reference: the rank whose clock it is: the lowest that is connected by common collectives.
    """

    rank: int
    offset_ns: int | None
    error_ns: int | None
    calls: int
    reference: int


def clocks_of(ranks: Mapping[int, RankCalls]) -> tuple[Clock, ...]:
    """Clocks of ranks, by rank, from the collectives that they have in common; offsets in ns.

    An offset is the median difference of the ends of the calls (docs/computed.md, "Stragglers").
    """
    matched = match(ranks)
    return align(matched)[0] if len(matched) else unknown_clocks(matched)


def unknown_clocks(matched: MatchedCalls) -> tuple[Clock, ...]:
    """Clocks of ranks that have no call in common."""
    return tuple(Clock(rank, None, None, 0, rank) for rank in matched.ranks)


def align(
    matched: MatchedCalls, scratch: Ints | None = None
) -> tuple[tuple[Clock, ...], Ints, npt.NDArray[np.bool_]]:
    """Clocks of all ranks.

    Args:
        matched: at least one call.
        scratch: an array of shape (rows,) to write to, for whoever has one to spare.

    Returns:
        (clocks by rank, offset of each rank in ns, 0 where it is unknown, shape (ranks,), calls
        whose ranks are all aligned with each other, shape (calls,)).
    """
    use, first = matched.symmetric, matched.first
    uses_all = bool(use.all())
    offset, reference = _offsets(matched, use, first)
    # In place: of thousands of ranks there are tens of millions of rows.
    distance = np.empty_like(matched.end) if scratch is None else scratch
    add_by_code(matched.end, offset, matched.rank, distance)
    subtract_by_code(distance, _middles(distance, matched), matched.call)
    np.abs(distance, out=distance)
    connected = np.bincount(reference[reference >= 0], minlength=len(reference))
    one_clock = _have_one_clock(matched, reference)
    is_one_clock = bool(one_clock.all())
    clocks = []
    for position, rank in enumerate(matched.ranks):
        mine = matched.rows_of[position]
        mine = mine if uses_all else mine[use[mine]]
        to = int(reference[position])
        known = to >= 0 and connected[to] > 1
        # Where a stranger takes part, the middle of the ends is nobody's.
        told = mine if is_one_clock else mine[one_clock[matched.call[mine]]]
        clocks.append(
            Clock(
                rank=rank,
                offset_ns=int(offset[position]) if known else None,
                error_ns=_median(distance[told]) if known and len(told) else None,
                calls=len(mine),
                reference=matched.ranks[to] if known else rank,
            )
        )
    return tuple(clocks), offset, one_clock


def _have_one_clock(matched: MatchedCalls, reference: Ints) -> npt.NDArray[np.bool_]:
    """For each call whether all of its ranks are aligned with the same rank."""
    if (reference == reference[0]).all():
        return np.ones(len(matched.first), dtype=bool)
    of_calls = (
        reduce_by_code(reduce, reference, matched.rank, matched.first)
        for reduce in (np.minimum, np.maximum)
    )
    return np.equal(*of_calls)


def _median(values: Ints) -> int:
    """Of at least one value, none below 0; in whole ns."""
    values.sort()
    return int(values[(len(values) - 1) // 2] + values[len(values) // 2]) // 2


def _offsets(matched: MatchedCalls, use: npt.NDArray[np.bool_], first: Ints) -> tuple[Ints, Ints]:
    """Offset of each rank, and the position of the rank that it is relative to, -1 for none.

    From each rank that is not aligned yet to those that it shares calls with, then to theirs. Only
    the calls of ranks reached are looked at: there may be many sets of ranks that share too few.
    """
    count = len(matched.ranks)
    offset, reference = np.zeros(count, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    base = np.zeros(len(first), dtype=np.int64)
    for origin in range(count):
        if reference[origin] >= 0:
            continue
        reference[origin] = origin
        reached = ints([origin])
        # Of several ranks reached the lowest tells when a call ended.
        teller = np.full(len(first), count, dtype=np.int32)
        # Once all are aligned, what the last ones would tell is of no use, and is most of all.
        while len(reached) and (reference < 0).any():
            rows = np.concatenate([matched.rows_of[position] for position in reached])
            rows = rows[use[rows]]
            rows = rows[matched.rank[rows] < teller[matched.call[rows]]][::-1]
            call, rank = matched.call[rows], matched.rank[rows]
            teller[call] = rank
            base[call] = matched.end[rows] + offset[rank]
            rows = _rows_of_calls(np.flatnonzero(teller < count), matched)
            rows = rows[reference[matched.rank[rows]] < 0]
            apart = base[matched.call[rows]] - matched.end[rows]
            reached = _extend(ints(matched.rank[rows]), apart, offset)
            reference[reached] = origin
    return offset, reference


def _middles(values: Ints, matched: MatchedCalls) -> Ints:
    """The middle of each call's values, of two the mean: as far from one as from the other."""
    first, sizes = matched.first, matched.size
    found = np.empty(len(first), dtype=np.int64)
    # Calls of as many ranks are a matrix, and sorting its rows is fast; in parts of bounded size.
    for size in distinct(sizes).tolist():
        same = np.flatnonzero(sizes == size)
        for calls in np.array_split(same, -(-len(same) * size // _MOST_SORTED)):
            begin, end = int(first[calls[0]]), int(first[calls[-1]]) + size
            if end - begin == len(calls) * size:
                # One behind the other, as the calls of a group lie.
                rows = np.sort(values[begin:end].reshape(len(calls), size), axis=1)
            else:
                rows = values[first[calls][:, None] + np.arange(size)]
                rows.sort(axis=1)
            low, high = rows[:, (size - 1) // 2], rows[:, size // 2]
            found[calls] = low + (high - low) // 2
    return found


def _rows_of_calls(calls: Ints, matched: MatchedCalls) -> Ints:
    """All rows of these calls."""
    counts = ints(matched.size[calls])
    skipped = matched.first[calls] - np.append(0, np.cumsum(counts)[:-1])
    return np.arange(int(counts.sum())) + np.repeat(skipped, counts) if len(calls) else calls


def _extend(rank: Ints, difference: Ints, offset: Ints) -> Ints:
    """Align the ranks for which enough differences are there; which these are, ascending."""
    ordered = _by_rank(rank, difference)
    counts = np.bincount(rank, minlength=1)
    found = np.flatnonzero(counts >= _LEAST_MATCHES)
    counts, first = counts[found], (np.cumsum(counts) - counts)[found]
    low = ordered[first + (counts - 1) // 2]
    high = ordered[first + counts // 2]
    offset[found] = ints(low + (high - low) // 2)
    return ints(found)


def _by_rank(rank: Ints, difference: Ints) -> Ints:
    """The differences rank by rank, and ascending within each."""
    if not len(rank):
        return difference
    least, most = int(difference.min()), int(difference.max())
    span = most - least + 1
    if span >= _MOST_KEY // (int(rank.max()) + 1):
        return ints(difference[np.lexsort((difference, rank))])
    # Rank and difference in one number: sorted in a tenth of the time.
    key = rank * span
    key += difference - least
    key.sort()
    key -= np.repeat(np.arange(int(rank.max()) + 1) * span, np.bincount(rank))
    key += least
    return key
