# SPDX-License-Identifier: Apache-2.0
"""How far ranks have come in their groups: which collectives each has called, and completed.

A rank with nothing pending may be ahead of those that wait: it has completed what they wait in.
"""

from __future__ import annotations

from collections.abc import Iterable

from megatron.torch_trace.flight_recorder.record import Call, FlightRecord


class Reached:
    """Of all ranks, as far as their records hold calls that are complete."""

    def __init__(self, records: Iterable[FlightRecord]) -> None:
        self._called: dict[tuple[int, str], int] = {}
        self._completed: dict[tuple[int, str], int] = {}
        for record in records:
            for call in record.calls:
                if not call.is_transfer:
                    _raise(self._called, record.rank, call)
                    if not call.pending:
                        _raise(self._completed, record.rank, call)

    def has_called(self, rank: int, call: Call) -> bool:
        """Whether a rank has called a collective of another rank."""
        return self._called.get((rank, call.group), -1) >= call.sequence

    def has_completed(self, rank: int, call: Call) -> bool:
        """Whether a rank has completed a collective of another rank."""
        return self._completed.get((rank, call.group), -1) >= call.sequence


def _raise(numbers: dict[tuple[int, str], int], rank: int, call: Call) -> None:
    at = rank, call.group
    numbers[at] = max(call.sequence, numbers.get(at, -1))
