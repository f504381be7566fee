# SPDX-License-Identifier: Apache-2.0
"""Memory of each rank at its peak, where snapshots or memory events tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.tables import Cell, Column, Row, Table
from megatron.torch_trace.wording import NONE, UNKNOWN, size

if TYPE_CHECKING:
    from megatron.torch_trace.allocator.ranks.stages import RankMemory

_FIRST = ("rank", "coordinates", "peak", "reserved", "free between", "never used", "largest holder")


def section(subject: Subject) -> Section:
    """Peak, reserved memory, fragmentation and categories of each rank."""
    title = "Memory"
    ranks = subject.memory
    if not ranks:
        return Section(
            "memory",
            title,
            "No allocator snapshot lies beside the traces, and no trace has memory events.",
        )
    # Imported here: most windows have neither.
    from megatron.torch_trace.allocator.purpose.categories import CATEGORIES

    shown = [one for one in CATEGORIES if any(r.answer.categories.get(one) for r in ranks)]
    names = (*_FIRST[:-1], *(one.words for one in shown), _FIRST[-1])
    words = {"rank", "coordinates", "largest holder"}
    columns = tuple(Column(name, number=name not in words) for name in names)
    rows = tuple(
        Row((*_cells(one), *(_size(one.answer.categories.get(c)) for c in shown), _holder(one)))
        for one in ranks
    )
    return Section(
        "memory",
        title,
        tables=[Table("memory-ranks", "At the peak of each rank", columns, rows).without_empty(2)],
        rest="torch-trace memory FOLDER -o memory.html draws it over time, with what lives at the "
        "peak by stack and the allocator's segments.",
    )


def _cells(one: RankMemory) -> tuple[Cell, ...]:
    answer = one.answer
    rank = UNKNOWN if answer.rank is None else str(answer.rank)
    return (
        Cell(rank, sort=answer.rank),
        Cell(one.facts.words or NONE),
        _size(answer.peak_bytes),
        _size(answer.peak_reserved),
        _size(answer.fragmentation.scattered if answer.fragmentation else None),
        _size(one.free),
    )


def _size(count: int | None) -> Cell:
    return Cell(size(count) if count else NONE, sort=count or 0)


def _holder(one: RankMemory) -> Cell:
    holders = [holder for holder in one.answer.holders if holder.module]
    if not holders:
        return Cell(NONE)
    return Cell(f"{holders[0].module} {size(holders[0].size)}", sort=holders[0].size)
