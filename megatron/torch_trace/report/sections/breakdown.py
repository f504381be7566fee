# SPDX-License-Identifier: Apache-2.0
"""The answer, every rank's stacked breakdown, and the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.results.rank_groups import (
    GroupShares,
    by_coordinate,
    by_difference,
    by_step,
)
from megatron.torch_trace.analysis.results.shown_ranks import shown_ranks
from megatron.torch_trace.analysis.timeline.breakdown import Breakdown
from megatron.torch_trace.format.breakdown_parts import (
    BREAKDOWN_HEADS,
    BREAKDOWN_NAMES,
    BREAKDOWN_PARTS,
)
from megatron.torch_trace.report import sentences
from megatron.torch_trace.report.coordinates import used_dimensions, where
from megatron.torch_trace.report.per_iteration import steps_by_rank
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.sections import findings
from megatron.torch_trace.report.tables import (
    At,
    Cell,
    Column,
    Medium,
    Row,
    Table,
    in_json,
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

_MOST_STEPS, _STEPS = 200, 16
LEGEND = tuple(BREAKDOWN_NAMES.items())
_TITLES = tuple(BREAKDOWN_HEADS.values())


@dataclass(frozen=True, slots=True)
class Slim:
    """A rank as a narrow column: where each colour ends from below, in %, and what it says."""

    rank: int
    where: str
    ends: tuple[float, ...] | None
    told: str
    sort: tuple[float, ...]
    at: At | None


def section(subject: Subject) -> Section:
    """The first screen."""
    analysis = subject.analysis
    ranks = analysis.ranks
    many = len(ranks) > FEW
    groups = by_coordinate(ranks) if many else ()
    data = {
        "answer": sentences.answer(analysis),
        "lead": findings.first(analysis),
        "findings": len(analysis.findings),
        "on_one_screen": len(ranks) <= _ON_ONE_SCREEN,
        "many": many,
        "slim": [_slim(rank) for rank in shown_ranks(analysis)] if many else [],
        "count": len(ranks),
        "choice": _choice(analysis),
        "names": BREAKDOWN_NAMES,
    }
    tables = [] if analysis.is_of_the_cpu else [_ranks(analysis), _coordinates(groups)]
    return Section("breakdown", "Where the time went", tables=tables, legend=LEGEND, data=data)


def _choice(analysis: Analysis) -> str:
    """Which ranks the page shows, where these are not all."""
    count, shown = len(analysis.ranks), len(shown_ranks(analysis))
    if shown == count:
        return ""
    return (
        f"The page shows {shown:,} of {count:,} ranks: those of findings, the most and the least "
        "idle, those that other ranks wait for longest, and a selection of the others. Means are "
        "of all ranks. `--rank R` shows other ranks, and `analyze --json` has all."
    )


def whole(rank: RankResult) -> At | None:
    """The rank's window."""
    if not rank.course:
        return None
    return At(rank.rank, rank.course.edges_ns[0], rank.window_ns)


def _ranks(analysis: Analysis) -> Table:
    used = used_dimensions(analysis)
    columns = (
        Column("rank"),
        *((Column("at", number=False),) if used else ()),
        *_columns("window ms", "window", sums="ms"),
        Column("overlapped comm", hint="communication while the GPU computes", brief=None),
    )
    extremes = analysis.summary.extremes
    shown = shown_ranks(analysis)
    more = len(analysis.ranks) - len(shown)
    steps = steps_by_rank(analysis)
    rows = []
    for rank in shown:
        length = rank.window_ns
        cells = (
            rank_cell(rank),
            *((text(where(rank, used), where(rank, frozenset(rank.coordinates))),) if used else ()),
            *_cells(rank.breakdown, length, steps[rank.rank]),
            _part(rank.overlapped_communication_ns, length),
        )
        rows.append(Row(cells, whole(rank), spare=rank.rank not in extremes))
    return Table(
        "ranks",
        "Every rank, % of its window" if not more else "Ranks, % of their windows",
        columns,
        tuple(rows),
        rest=in_json(more, "rank"),
        more=more,
        brief="WHERE THE TIME WENT (ms)",
        told="The least and the most idle ranks; --rank R or --json shows {}.",
        each="rank",
        limit=len(rows),
    ).without_empty(len(columns) - 1)


def _columns(title: str, brief: str, sums: str = "") -> tuple[Column, ...]:
    """A length of time and its parts: shares on a page, ms on a terminal."""
    return (
        Column("breakdown", number=False, brief=None),
        Column(title, brief=brief, sums=sums),
        *map(Column, _TITLES),
        Column("", brief="busy"),
    )


def _cells(parts: Breakdown | None, length: int, steps: int = 1) -> tuple[Cell, ...]:
    busy = UNKNOWN
    if parts is not None:
        busy = percent(1 - parts.idle / length if length else 0.0)
    return (
        stacked(parts, length),
        ms(length),
        *(_part(getattr(parts, name, None), length, steps) for name in BREAKDOWN_PARTS),
        Cell(busy),
    )


def _part(ns: int | None, length: int, steps: int = 1) -> Cell:
    """A share on a page; ms of an iteration on a terminal."""
    if ns is None or not length:
        return Cell(UNKNOWN)
    return Cell(percent(ns / length), sort=ns / length, brief=milliseconds(ns / max(1, steps)))


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


def _coordinates(groups: Sequence[GroupShares]) -> Table | None:
    if not groups:
        return None
    caption = "By coordinate in the parallel dimensions, those that differ most first"
    shown, alike = by_difference(groups)
    note = f"The same at every coordinate: {', '.join(alike)}." if alike else ""
    table = _groups("coordinates", "ranks", caption, shown, sums="ms")
    return replace(table, media=Medium.WRITTEN, limit=16, note=note)


def _groups(
    name: str, what: str, caption: str, groups: Sequence[GroupShares], sums: str = ""
) -> Table:
    columns = (
        Column(what, number=False),
        Column("count", brief=None),
        Column("breakdown", number=False, brief=None),
        Column("mean ms", brief="mean", sums=sums),
        Column("shortest ms (rank)", brief="shortest (rank)", sums=sums),
        Column("longest ms (rank)", brief="longest (rank)", sums=sums),
        *map(Column, _TITLES),
    )
    rows = tuple(Row(_group_cells(group)) for group in groups[:_MOST_STEPS])
    more = len(groups) - len(rows)
    return Table(name, caption, columns, rows, in_json(more), more)


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


def steps(subject: Subject) -> Section:
    """Step by step; rank by rank where ranks are few."""
    analysis, title = subject.analysis, "Steps"
    if analysis.is_of_the_cpu:
        return Section("steps", title, "The section Time of the CPU has the steps.")
    if not analysis.summary.steps:
        return Section("steps", title, "The traces have no steps (ProfilerStep).")
    if len(analysis.summary.steps) == 1:
        return Section("steps", title, "The window is a single step.")
    if len(analysis.ranks) * len(analysis.summary.steps) <= FEW:
        return Section("steps", title, tables=[_steps(analysis)])
    table = _groups("each-step", "steps", "Each step over its ranks", by_step(analysis.ranks))
    heading = "STEPS (ms; parts in % of the step; over all ranks)"
    return Section("steps", title, tables=[replace(table, brief=heading, most=_STEPS, limit=FEW)])


def _steps(analysis: Analysis) -> Table:
    columns = (Column("step"), Column("rank"), *_columns("ms", "length"))
    rows = []
    for rank in analysis.ranks:
        for step in rank.steps:
            length = step.end_ns - step.start_ns
            cells = (
                number(step.step, str(step.step)),
                rank_cell(rank),
                *_cells(step.breakdown, length),
            )
            rows.append(Row(cells, At(rank.rank, step.start_ns, length)))
    caption = "Each step of each rank, % of the step"
    return Table("each-step", caption, columns, tuple(rows), brief="STEPS (ms)", limit=FEW)
