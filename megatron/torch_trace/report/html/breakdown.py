# SPDX-License-Identifier: Apache-2.0
"""The answer, every rank's stacked breakdown, and the steps."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.results.rank_groups import GroupShares, by_coordinate, by_step
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_PARTS
from megatron.torch_trace.report import sentences
from megatron.torch_trace.report.html import findings
from megatron.torch_trace.report.places import used_dimensions, where
from megatron.torch_trace.report.tables import (
    At,
    Cell,
    Column,
    Row,
    Section,
    Table,
    ms,
    number,
    rank_cell,
    stacked,
    text,
)
from megatron.torch_trace.wording import UNKNOWN, milliseconds, percent

FEW = 32
"""Ranks that have a line each at once; more are columns side by side."""

_ON_ONE_SCREEN = 8
"""Ranks whose lines leave room for the first findings below them."""

_MOST_STEPS = 200
_TITLES = ("compute", "exposed comm", "exposed copies", "idle")


@dataclass(frozen=True, slots=True)
class Slim:
    """A rank as a narrow column: where each colour ends from below, in %, and what it says."""

    rank: int
    where: str
    ends: tuple[float, ...] | None
    told: str
    sort: tuple[float, ...]
    at: At | None


def section(analysis: Analysis) -> Section:
    """The first screen."""
    ranks = analysis.ranks
    many = len(ranks) > FEW
    groups = by_coordinate(ranks) if many else ()
    return Section(
        "breakdown",
        "Where the time went",
        data={
            "answer": sentences.answer(analysis),
            "lead": findings.first(analysis),
            "findings": len(analysis.findings),
            "on_one_screen": len(ranks) <= _ON_ONE_SCREEN,
            "parts": list(
                zip(
                    BREAKDOWN_PARTS,
                    ("compute", "exposed communication", "exposed copies", "idle"),
                    strict=True,
                )
            ),
            "table": None if analysis.is_of_the_cpu else _table(analysis),
            "many": many,
            "slim": [_slim(rank) for rank in ranks] if many else [],
            "coordinates": _groups("coordinates", "By place in the parallel dimensions", groups)
            if groups
            else None,
            "count": len(ranks),
        },
    )


def whole(rank: RankResult) -> At | None:
    """The rank's window."""
    if not rank.course:
        return None
    return At(rank.rank, rank.course.edges_ns[0], rank.window_ns)


def _table(analysis: Analysis) -> Table:
    used = used_dimensions(analysis)
    columns = (
        Column("rank"),
        *((Column("at", number=False),) if used else ()),
        Column("breakdown", number=False),
        Column("window ms"),
        *(Column(title) for title in _TITLES),
        Column("hidden comm", hint="communication beside compute"),
    )
    rows = []
    for rank in analysis.ranks:
        parts, length = rank.breakdown, rank.window_ns
        hidden = rank.overlapped_communication_ns
        cells = (
            rank_cell(rank),
            *((text(where(rank, used), where(rank, frozenset(rank.coordinates))),) if used else ()),
            stacked(parts, length),
            ms(length),
            *(_part(getattr(parts, name, None), length) for name in BREAKDOWN_PARTS),
            _part(hidden, length),
        )
        rows.append(Row(cells, whole(rank)))
    return Table("ranks", "Every rank, % of its window", columns, tuple(rows))


def _part(ns: int | None, length: int) -> Cell:
    if ns is None or not length:
        return Cell(UNKNOWN)
    return Cell(percent(ns / length), sort=ns / length)


def _slim(rank: RankResult) -> Slim:
    everywhere = " ".join(f"{k}{v}" for k, v in rank.coordinates.items())
    if rank.breakdown is None or not rank.window_ns:
        return Slim(rank.rank, everywhere, None, f"{rank.name}: unknown", (0.0,) * 4, whole(rank))
    shares = [getattr(rank.breakdown, name) / rank.window_ns for name in BREAKDOWN_PARTS]
    ends = tuple(round(100 * sum(shares[: n + 1]), 1) for n in range(3))
    told = ", ".join(f"{t} {percent(s)}" for t, s in zip(_TITLES, shares, strict=True))
    return Slim(
        rank.rank,
        everywhere,
        ends,
        f"{rank.name} ({everywhere}): {told}" if everywhere else f"{rank.name}: {told}",
        tuple(round(one, 4) for one in shares),
        whole(rank),
    )


def _groups(name: str, caption: str, groups: tuple[GroupShares, ...]) -> Table:
    columns = (
        Column(name.rstrip("s").replace("coordinate", "ranks"), number=False),
        Column("count"),
        Column("breakdown", number=False),
        Column("mean ms"),
        Column("shortest ms (rank)"),
        Column("longest ms (rank)"),
        *(Column(title) for title in _TITLES),
    )
    rows = tuple(Row(_group_cells(group)) for group in groups[:_MOST_STEPS])
    more = len(groups) - len(rows)
    rest = f"{more:,} more are in analyze --json." if more else ""
    return Table(name, caption, columns, rows, rest)


def _group_cells(group: GroupShares) -> tuple[Cell, ...]:
    shares = group.shares
    bar = Cell(UNKNOWN)
    if shares:
        told = ", ".join(f"{t} {percent(s)}" for t, s in zip(_TITLES, shares, strict=True))
        bar = Cell("", full=told, bar=tuple(zip(BREAKDOWN_PARTS, shares, strict=True)))
    return (
        text(group.label),
        number(group.count, f"{group.count:,}"),
        bar,
        ms(group.mean_ns),
        _whose(group.shortest_ns, group.shortest_rank),
        _whose(group.longest_ns, group.longest_rank),
        *(Cell(percent(one), sort=one) for one in shares or (None,) * 4),
    )


def _whose(length: int, rank: int) -> Cell:
    return Cell(f"{milliseconds(length)} ({rank})", sort=length)


def steps(analysis: Analysis) -> Section:
    """Step by step; rank by rank where ranks are few."""
    if analysis.is_of_the_cpu:
        return Section("steps", "Steps", "they are in the section on the time of the CPU")
    if not analysis.summary.steps:
        return Section("steps", "Steps", "the traces mark no steps (ProfilerStep)")
    if len(analysis.summary.steps) == 1:
        return Section("steps", "Steps", "only one was recorded, so it is the window")
    few = len(analysis.ranks) * len(analysis.summary.steps) <= FEW
    if not few:
        table = _groups("steps", "Each step over its ranks", by_step(analysis.ranks))
        return Section("steps", "Steps", data={"table": table})
    columns = (
        Column("step"),
        Column("rank"),
        Column("breakdown", number=False),
        Column("ms"),
        *(Column(title) for title in _TITLES),
    )
    rows = []
    for rank in analysis.ranks:
        for step in rank.steps:
            length = step.end_ns - step.start_ns
            cells = (
                number(step.step, str(step.step)),
                rank_cell(rank),
                stacked(step.breakdown, length),
                ms(length),
                *(_part(getattr(step.breakdown, name, None), length) for name in BREAKDOWN_PARTS),
            )
            rows.append(Row(cells, At(rank.rank, step.start_ns, length)))
    table = Table("steps", "Each step of each rank", columns, tuple(rows))
    return Section("steps", "Steps", data={"table": table})
