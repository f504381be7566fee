# SPDX-License-Identifier: Apache-2.0
"""The call of a collective in which ranks waited longest in sum, and when each of them arrived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from megatron.torch_trace.analysis.communication.matching import MatchedCalls
from megatron.torch_trace.analysis.timeline.moment import Moment
from megatron.torch_trace.columns.intervals import Ints


@dataclass(frozen=True, slots=True)
class Arrival:
    """One rank in the call.

    Args:
        rank: the rank.
        late_ns: how much later it arrived than the first one, on the common clock.
        wait_ns: how long it waited for the last one.
        shared_ns: the rest of its time in the call, in which all of them are there.
        moment: where it is in the rank's trace; None if the trace's base time is unknown.
    """

    rank: int
    late_ns: int
    wait_ns: int
    shared_ns: int
    moment: Moment | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WorstCall:
    """The call; `arrivals` by how late they are, the last one first."""

    dimension: str
    collective: str
    arrivals: tuple[Arrival, ...]


def worst_call(
    matched: MatchedCalls,
    first: Ints,
    total: Ints,
    wait: Ints,
    start: Ints,
    bases: Mapping[int, int],
) -> WorstCall | None:
    """The call with most waiting; None where nobody waited.

    Args:
        matched: calls found on several ranks.
        first: the first row of each call.
        total: for each call, the sum of the waits, ns; 0 where nobody is late.
        wait, start: for each row, ns waited, and the arrival on a clock of all ranks of the call.
        bases: rank -> base time of its trace, ns since the epoch.
    """
    call = int(total.argmax())
    if not total[call]:
        return None
    begin = int(first[call])
    end = int(first[call + 1]) if call + 1 < len(first) else len(wait)
    dimension, _, collective = matched.labels[int(matched.label[call])]
    earliest = int(start[begin:end].min())
    found = []
    for row in range(begin, end):
        rank = matched.ranks[int(matched.rank[row])]
        began, length = int(matched.start[row]), int(matched.end[row] - matched.start[row])
        base = bases.get(rank)
        moment = None if base is None else Moment(began - base, length)
        waited = int(wait[row])
        late = int(start[row]) - earliest
        found.append(Arrival(rank, late, waited, length - waited, moment))
    ordered = sorted(found, key=lambda one: (-one.late_ns, one.rank))
    return WorstCall(dimension, collective, tuple(ordered))
