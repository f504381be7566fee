# SPDX-License-Identifier: Apache-2.0
"""A section of a report: what it is made from, and what it holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.results.run_record import RunRecord
from megatron.torch_trace.report.tables import Medium, Table

if TYPE_CHECKING:
    from megatron.torch_trace.allocator.ranks.stages import RankMemory


@dataclass(frozen=True, slots=True)
class Subject:
    """What a report is about.

    Args:
        analysis: what is rendered.
        record: run.json and metrics of the run, where there are any.
        memory: of the ranks with an allocator snapshot beside their traces.
        top: rows that a terminal shows of tables of work; of trees twice as many.
        draws: whether figures are drawn; a terminal shows none, and need not import them.
    """

    analysis: Analysis
    record: RunRecord | None = None
    memory: Sequence[RankMemory] = ()
    top: int = 5
    draws: bool = True


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a report.

    Args:
        name: its id; of a section with `data` its template too.
        missing: why there is nothing to show, a sentence; then it is left out.
        tables: one below the other; None for one that there is no reason for.
        legend: (colour, words) of the bars in the tables.
        rest: a sentence below the tables of a page.
        said: the same on a terminal.
        data: what the section's own template draws besides tables.
    """

    name: str
    title: str
    missing: str | None = None
    tables: Iterable[Table | None] = ()
    legend: tuple[tuple[str, str], ...] = ()
    rest: str = ""
    said: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def shown(self, medium: Medium) -> list[Table]:
        """The tables that are for this medium and have rows, with the columns that are for it."""
        found = [one for one in self.tables if one and one.rows and medium in one.media]
        if medium is Medium.TERMINAL:
            return found
        untitled = [
            [n for n, column in enumerate(one.columns) if not column.title] for one in found
        ]
        return [
            one.without(left) if left else one for one, left in zip(found, untitled, strict=True)
        ]
