# SPDX-License-Identifier: Apache-2.0
"""When ranks arrive in the calls that they have in common: of all calls, and of one rank's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.communication.clocks import Clock
from megatron.torch_trace.analysis.communication.collectives import SYMMETRIC
from megatron.torch_trace.analysis.communication.matching import MatchedCalls
from megatron.torch_trace.analysis.timeline.code_columns import add_by_code, reduce_by_code
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
    label: npt.NDArray[np.int32]
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
    error = reduce_by_code(np.maximum, errors, matched.rank, first)
    error *= 3
    labels = [(dimension, collective) for dimension, _, collective in matched.labels]
    codes = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    return Arrivals(
        matched=matched,
        first=first,
        wait=wait,
        start=start,
        earliest=earliest,
        latest=latest,
        counts=matched.symmetric[first]
        & (latest - earliest > np.maximum(error, _NOISE_NS, out=error)),
        total=np.add.reduceat(wait, first),
        label=np.array([codes[one] for one in labels], dtype=np.int32)[matched.label],
        names=tuple(codes),
    )


@dataclass(frozen=True, slots=True)
class LabelArrivals:
    """One rank's calls with one label.

    Args:
        label: code into `Arrivals.names`.
        rows: which they are of `RankArrivals`.
        calls, last_arrivals: how many count, and in how many of them this rank came last.
        imposed_ns, wait_ns: sums of what the others waited for it, and of what it waited.
    """

    label: int
    rows: slice
    calls: int
    last_arrivals: int
    imposed_ns: int
    wait_ns: int


@dataclass(frozen=True, slots=True)
class RankArrivals:
    """One rank's rows of calls that all ranks leave together, by label, then as in `matched`.

    Args:
        rows, call: which they are.
        counted: whether arrivals differ in the call.
        imposed: ns that the others waited for this rank, in sum.
        delay_ns: the same for each of the others, summed over the calls.
        by_label: each label that there is, ascending.
    """

    rows: Ints
    call: Ints
    counted: npt.NDArray[np.bool_]
    imposed: Ints
    delay_ns: int
    by_label: tuple[LabelArrivals, ...]


def arrivals_of_rank(calls: Arrivals, rows: npt.NDArray[np.int32]) -> RankArrivals:
    """What one rank's rows of the matched calls tell; `rows` are those of `matched`."""
    unsorted = calls.matched.call[rows]
    # Labels are few, and numbers of 16 bits are sorted without comparing them.
    label = calls.label[unsorted].astype(np.int16)
    order = np.argsort(label, kind="stable")
    mine, call = ints(rows[order]), ints(unsorted[order])
    sizes = np.bincount(label)
    labels = np.flatnonzero(sizes)
    begins = (np.cumsum(sizes) - sizes)[labels]
    counted, wait = calls.counts[call], calls.wait[mine]
    last = (calls.start[mine] == calls.latest[call]) & counted
    imposed = np.where(last, calls.total[call] - wait, 0)
    columns = np.stack((counted, last, imposed, wait))
    sums = np.add.reduceat(columns, begins, axis=1).T if len(mine) else columns.T
    there = np.flatnonzero(last)
    delay = imposed[there] // (calls.matched.size[call[there]] - 1)
    parts = zip(
        labels.tolist(), begins.tolist(), sizes[labels].tolist(), sums.tolist(), strict=True
    )
    found = tuple(
        LabelArrivals(label, slice(begin, begin + size), *of_label)
        for label, begin, size, of_label in parts
        if calls.names[label][1] in SYMMETRIC
    )
    return RankArrivals(mine, call, counted, imposed, int(delay.sum()), found)
