# SPDX-License-Identifier: Apache-2.0
"""When ranks arrive in the calls that they have in common: of all calls, and of one rank's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.communication.clocks import Clock
from megatron.torch_trace.analysis.communication.matching import MatchedCalls
from megatron.torch_trace.analysis.timeline.code_columns import add_by_code, extremes_by_code
from megatron.torch_trace.columns.intervals import Ints, ints

_NOISE_NS = 20_000
"""Arrivals closer than this are together: nobody is called late for it."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When ranks arrived in calls.

    Args:
        start: of each row, on a clock that all ranks of its call have.
        earliest, latest: of each call.
        counts: for each call, whether its arrivals are further apart than the clocks' error.
        total: of each call, the sum of the waits, ns.
        others: of each call, its ranks but one.
        label: of each call, code into `names`.
        names: (dimension, collective).
    """

    matched: MatchedCalls
    first: Ints
    wait: Ints
    start: Ints
    earliest: Ints
    latest: Ints
    counts: npt.NDArray[np.bool_]
    total: Ints
    others: Ints
    label: Ints
    names: tuple[tuple[str, str], ...]


def arrivals_of(
    matched: MatchedCalls,
    first: Ints,
    wait: Ints,
    alignment: tuple[tuple[Clock, ...], Ints, npt.NDArray[np.bool_]],
    start: Ints,
) -> Arrivals:
    """When ranks arrived in the matched calls.

    Args:
        matched: at least one call.
        first: the first row of each call.
        wait: of each row, ns.
        alignment: what `clocks.align` tells.
        start: an array of a number for each row, which becomes that of the answer.

    Source: docs/computed.md, "Stragglers".
    """
    clocks, offset, one_clock = alignment
    add_by_code(matched.start, offset, matched.rank, start)
    if not one_clock.all():
        apart = np.flatnonzero(~one_clock[matched.call])
        start[apart] = matched.start[apart] - matched.end[apart]
    earliest = np.minimum.reduceat(start, first)
    latest = np.maximum.reduceat(start, first)
    # Of the ranks in the call: one bad clock among a thousand must not hide who is late elsewhere.
    errors = ints([clock.error_ns or 0 for clock in clocks])
    error = extremes_by_code(errors, matched.rank, first)[1]
    labels = [(dimension, collective) for dimension, _, collective in matched.labels]
    codes = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    return Arrivals(
        matched=matched,
        first=first,
        wait=wait,
        start=start,
        earliest=earliest,
        latest=latest,
        counts=matched.symmetric[first] & (latest - earliest > np.maximum(_NOISE_NS, 3 * error)),
        total=np.add.reduceat(wait, first),
        others=np.diff(np.append(first, len(wait))) - 1,
        label=ints([codes[one] for one in labels])[matched.label],
        names=tuple(codes),
    )


@dataclass(frozen=True, slots=True)
class RankArrivals:
    """One rank's rows of the matched calls, or some of them.

    Args:
        rows, call, label: which they are.
        counted, last: whether arrivals differ in the call, and whether this rank came last in it.
        imposed, delay: ns that the others waited for it, in sum and each.
        wait: its own, ns.
    """

    rows: Ints
    call: Ints
    label: Ints
    counted: npt.NDArray[np.bool_]
    last: npt.NDArray[np.bool_]
    imposed: Ints
    delay: Ints
    wait: Ints

    def where(self, these: npt.NDArray[np.bool_]) -> RankArrivals:
        """Only these of them."""
        return self if these.all() else self._of(these)

    def by_label(self) -> Iterator[tuple[int, RankArrivals]]:
        """Label and rows of each label that there is, ascending."""
        # Labels are few, and numbers of 16 bits are sorted without comparing them.
        there = self._of(np.argsort(self.label.astype(np.int16), kind="stable"))
        bounds = np.append(0, np.cumsum(np.bincount(there.label))).tolist()
        for label, (begin, end) in enumerate(pairwise(bounds)):
            if begin < end:
                yield label, there._of(slice(begin, end))

    def _of(self, these: npt.NDArray[np.bool_] | Ints | slice) -> RankArrivals:
        return RankArrivals(*(getattr(self, name)[these] for name in self.__slots__))


def arrivals_of_rank(calls: Arrivals, rows: npt.NDArray[np.int32]) -> RankArrivals:
    """What one rank's rows of the matched calls tell; `rows` are those of `matched`."""
    call = ints(calls.matched.call[rows])
    counted, wait = calls.counts[call], calls.wait[rows]
    last = (calls.start[rows] == calls.latest[call]) & counted
    imposed = np.where(last, calls.total[call] - wait, 0)
    delay = imposed // np.maximum(calls.others[call], 1)
    return RankArrivals(ints(rows), call, calls.label[call], counted, last, imposed, delay, wait)
