# SPDX-License-Identifier: Apache-2.0
"""The process groups of a job, from the records of all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from megatron.torch_trace.flight_recorder.record import FlightRecord, Group


def all_groups(records: Sequence[FlightRecord]) -> dict[str, Group]:
    """Groups by name; where no record lists the ranks, those that called it."""
    found: dict[str, Group] = {}
    callers: dict[str, set[int]] = defaultdict(set)
    for record in records:
        for call in record.calls:
            callers[call.group].add(record.rank)
        for group in record.groups.values():
            old = found.get(group.name)
            if old is None or len(old.ranks) < len(group.ranks):
                found[group.name] = group
    return {
        name: Group(name, one.description, one.ranks or tuple(sorted(callers[name])))
        for name, one in found.items()
    }
