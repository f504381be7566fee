# SPDX-License-Identifier: Apache-2.0
"""The worst call of a collective: when each rank arrived, how long it waited, what was shared."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.report.coordinates import used_dimensions, where
from megatron.torch_trace.report.tables import At, at
from megatron.torch_trace.wording import counted, duration

_MOST_ROWS = 32
_DECIMALS = 2


@dataclass(frozen=True, slots=True)
class FanRow:
    """A rank; lengths are % of the figure.

    Args:
        label: rank and coordinates.
        host: "" if it is unknown.
        late, wait, shared: before its arrival, waiting, together with the others.
        told: the same in words.
    """

    label: str
    host: str
    late: float
    wait: float
    shared: float
    told: str
    late_ns: int
    wait_ns: int
    at: At | None


@dataclass(frozen=True, slots=True)
class ArrivalFan:
    """The figure, with what it leaves out."""

    caption: str
    rows: tuple[FanRow, ...]
    rest: str


def arrival_fan(analysis: Analysis) -> ArrivalFan | None:
    """None where no call is known in which ranks waited."""
    call = analysis.worst_call
    if call is None:
        return None
    results = {rank.rank: rank for rank in analysis.ranks}
    used = used_dimensions(analysis)
    whole = max(one.late_ns + one.wait_ns + one.shared_ns for one in call.arrivals) or 1

    def part(ns: int) -> float:
        return round(100 * ns / whole, _DECIMALS)

    rows = []
    for one in call.arrivals[:_MOST_ROWS]:
        result = results.get(one.rank)
        coordinates = where(result, used) if result else ""
        rows.append(
            FanRow(
                f"rank {one.rank}" + (f" {coordinates}" if coordinates else ""),
                (result.host_name or "") if result else "",
                part(one.late_ns),
                part(one.wait_ns),
                part(one.shared_ns),
                f"arrives {duration(one.late_ns)} after the first rank, waits "
                f"{duration(one.wait_ns)}, then {duration(one.shared_ns)} with the others",
                one.late_ns,
                one.wait_ns,
                at(one.rank, one.moment),
            )
        )
    left = len(call.arrivals) - len(rows)
    rest = f"{counted(left, 'more rank')} arrived earlier than these." if left else ""
    name = f"{call.dimension} {call.collective.replace('_', ' ')}"
    return ArrivalFan(f"The {name} with most waiting: who arrives when", tuple(rows), rest)
