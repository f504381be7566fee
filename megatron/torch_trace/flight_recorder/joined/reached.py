# SPDX-License-Identifier: Apache-2.0
"""How far ranks have come in their groups: which collectives each has called, and completed.

A rank with nothing pending may be ahead of those that wait: it has completed what they wait in.
Where its record holds no call of the group, torch's own count of the group tells, if it is known
which count is of this group. Otherwise it is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from megatron.torch_trace.analysis.communication.dimensions import dimension_of
from megatron.torch_trace.flight_recorder.record import Call, FlightRecord, Group

ROOTED = frozenset({"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter"})
"""Collectives that are complete on one rank before all have called them: data goes one way."""


class Reached:
    """Of all ranks, as far as their records tell.

    Args:
        records: one a rank.
        groups: by name.
    """

    def __init__(self, records: Sequence[FlightRecord], groups: Mapping[str, Group]) -> None:
        self._called: dict[tuple[int, str], int] = {}
        self._pending: dict[tuple[int, str], int] = {}
        self._completed: dict[tuple[int, str], int] = {}
        self._by_all: dict[str, int] = {}
        self._sound = sound = {one.rank for one in records if not (one.damaged or one.overrun)}
        self._whole = {one.rank for one in records if one.whole and not one.damaged}
        for record in records:
            for call in record.calls:
                if not call.is_transfer:
                    self._see(record.rank, call)
        self._counts = dict(_counts(records, groups))
        for rank, group in [*self._called, *self._counts]:
            at = rank, group
            if rank in sound and at in self._pending:
                self._completed[at] = self._pending[at] - 1
            elif rank in sound:
                known = self._counts.get(at, -1)
                self._completed[at] = max(known, self._called.get(at, -1))
        self._by_one: dict[str, int] = {}
        for (_, group), last in self._completed.items():
            self._by_one[group] = max(last, self._by_one.get(group, -1))

    def _see(self, rank: int, call: Call) -> None:
        at = rank, call.group
        self._called[at] = max(call.sequence, self._called.get(at, -1))
        if call.pending:
            self._pending[at] = min(call.sequence, self._pending.get(at, call.sequence))
            return
        self._completed[at] = max(call.sequence, self._completed.get(at, -1))
        if call.name not in ROOTED:
            by_all = self._by_all.get(call.group, -1)
            self._by_all[call.group] = max(call.sequence, by_all)

    def has_called(self, rank: int, call: Call) -> bool | None:
        """Whether a rank has called a collective of another rank; None where it is unknown."""
        known = self._called.get((rank, call.group), self._counts.get((rank, call.group)))
        if known is not None and known >= call.sequence:
            return True
        # What one rank has completed all have called.
        by_one = -1 if call.name in ROOTED else self._by_one.get(call.group, -1)
        if max(by_one, self._by_all.get(call.group, -1)) >= call.sequence:
            return True
        return False if known is not None or rank in self._whole else None

    def has_completed(self, rank: int, call: Call) -> bool:
        """Whether a rank has completed a collective of another rank, as far as it is known."""
        if self._completed.get((rank, call.group), -1) >= call.sequence:
            return True
        pending = (rank, call.group) in self._pending
        return not pending and rank in self._sound and self.has_called(rank, call) is True


def _counts(
    records: Sequence[FlightRecord], groups: Mapping[str, Group]
) -> Iterator[tuple[tuple[int, str], int]]:
    """By rank and group, the last collective that torch counted.

    torch counts by a number of the group that only calls tell. A rank without calls has the same
    numbers as one that has made the same groups and called in the same of them.
    """
    mixed = {one.group for record in records for one in record.calls if one.is_transfer}
    told: dict[tuple[object, ...], dict[int, set[str]]] = {}
    for record in records:
        words = told.setdefault(_made(record), {})
        for number, name in record.numbers.items():
            words.setdefault(number, set()).add(groups[name].description)
    for record in records:
        names: dict[str, list[str]] = {}
        for name, group in record.groups.items():
            names.setdefault(group.description, []).append(name)
        for number, last in record.last_called.items():
            said = {*told[_made(record)].get(number, ())}
            description = said.pop() if len(said) == 1 else ""
            described = names.get(description, []) if description else []
            other = described[0] if len(described) == 1 else None
            own: str | None = record.numbers.get(number)
            of = other if own is None else own
            # A count of transfers is none of collectives.
            if of is None or of in mixed or dimension_of(groups[of].description) == "pp":
                continue
            yield (record.rank, of), last


def _made(record: FlightRecord) -> tuple[object, ...]:
    """Which groups a rank has made, in their order, and in which it has called something."""
    numbered = sorted(record.groups.values(), key=lambda one: (len(one.name), one.name))
    return (*(one.description for one in numbered), *sorted(record.last_called))
