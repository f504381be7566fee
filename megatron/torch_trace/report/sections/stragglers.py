# SPDX-License-Identifier: Apache-2.0
"""Who arrives last, and a map of ranks and collectives: who makes others wait, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from megatron.torch_trace.analysis.communication.stragglers import Lateness, Straggler
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.results.shown_ranks import MOST
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.tables import (
    At,
    Cell,
    Column,
    Row,
    Table,
    at,
    number,
    some_ms,
    text,
)
from megatron.torch_trace.wording import NONE, counted, duration, milliseconds, percent, ranks

_MOST_RANKS, _BRIEF_RANKS = 32, 16
_LEVELS = 6


@dataclass(frozen=True, slots=True)
class Spot:
    """One rank in one collective: how dark it is, what it says, where to look."""

    level: int
    text: str
    told: str
    at: At | None


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Ranks down, collectives across."""

    caption: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Spot, ...]], ...]
    rest: str


def section(subject: Subject) -> Section:
    """Nothing for a single rank."""
    analysis = subject.analysis
    title = "Stragglers"
    found = analysis.stragglers
    if not found:
        reason = (
            "A single rank cannot be compared with others."
            if len(analysis.ranks) == 1
            else ("No collective is in the traces of two ranks.")
        )
        return Section("stragglers", title, reason)
    columns = (
        Column("rank"),
        Column("arrives last"),
        Column("of calls", brief=None),
        Column(
            "imposed ms",
            brief="imposed",
            hint="sum of the waits of all other ranks for this rank",
            sums="ms",
        ),
        Column(
            "delay ms",
            brief=None,
            hint="how much later the other ranks go on, mean over them",
            sums="ms",
        ),
        Column("own waiting ms", brief="own waiting", sums="ms"),
        Column("mostly in", number=False),
    )
    rows = tuple(_row(one) for one in found[:MOST])
    more = len(found) - len(rows)
    table = Table(
        "late",
        "Who arrives last",
        columns,
        rows,
        f"{counted(more, 'more rank')} imposed less." if more else "",
        brief="STRAGGLERS (ms; imposed: sum of the waits of all other ranks)",
        most=_BRIEF_RANKS,
        told="{} imposed less.",
        each="rank",
        limit=_BRIEF_RANKS,
    )
    clocks = _clocks(analysis)
    data = _drawn(analysis, clocks) if subject.draws else {}
    return Section("stragglers", title, tables=[table], said=clocks, data=data)


def _drawn(analysis: Analysis, clocks: str) -> dict[str, Any]:
    from megatron.torch_trace.report.figures.arrival_fan import arrival_fan

    found = analysis.stragglers
    return {
        "clocks": clocks,
        "fan": arrival_fan(analysis),
        "maps": [
            _map(
                found,
                "Imposed wait, ms: how long other ranks wait for a rank, in sum",
                "imposed_wait_ns",
            ),
            _map(found, "Own wait, ms: how long a rank waits for other ranks", "own_wait_ns"),
        ],
    }


def _row(one: Straggler) -> Row:
    mostly = NONE
    if one.dimension:
        mostly = f"{one.dimension} {one.collective} ({percent(one.share_there)})"
    worst = max(one.by_collective, key=lambda row: row.imposed_wait_ns, default=None)
    cells = (
        number(one.rank, str(one.rank)),
        Cell(
            f"{one.last_arrivals:,}",
            sort=one.last_arrivals,
            brief=f"{one.last_arrivals:,} of {one.calls:,}",
        ),
        number(one.calls, f"{one.calls:,}"),
        some_ms(one.imposed_wait_ns),
        some_ms(one.delay_ns),
        some_ms(one.own_wait_ns),
        text(mostly.replace("_", " "), brief=mostly),
    )
    return Row(cells, at(one.rank, worst.worst if worst else None))


def _clocks(analysis: Analysis) -> str:
    """How the ranks were put on one clock."""
    known = [clock for clock in analysis.clocks if clock.offset_ns is not None]
    lost = tuple(clock.rank for clock in analysis.clocks if clock.offset_ns is None)
    errors = [clock.error_ns for clock in known if clock.error_ns is not None]
    matched = counted(analysis.matched_calls, "call of a collective", "calls of collectives")
    said = f"{matched} matched over ranks."
    if errors:
        offset = max(abs(clock.offset_ns or 0) for clock in known)
        said += (
            f" Clocks are aligned on the ends of these calls: offsets up to {duration(offset)}, "
            f"error up to {duration(max(errors))}."
        )
    apart = {clock.reference for clock in known}
    if len(apart) > 1:
        said += f" {len(apart)} sets of ranks share no collective with each other."
    if lost:
        said += (
            f" Too few common calls to align {'rank' if len(lost) == 1 else 'ranks'} {ranks(lost)}."
        )
    return said


def _map(found: Sequence[Straggler], caption: str, measure: str) -> HeatMap:
    """The ranks with most of the measure, in order; colours by the largest of all."""
    labels = _labels(found)
    total = {one.rank: sum(getattr(row, measure) for row in one.by_collective) for one in found}
    heaviest = sorted(found, key=lambda one: (-total[one.rank], one.rank))
    shown = sorted(heaviest[:_MOST_RANKS], key=lambda one: one.rank)
    most = max((getattr(row, measure) for one in shown for row in one.by_collective), default=0)
    lines = []
    for one in shown:
        rows = {(row.dimension, row.collective): row for row in one.by_collective}
        spots = tuple(_spot(one.rank, rows.get(label), measure, most) for label in labels)
        lines.append((str(one.rank), spots))
    rest = ""
    if len(found) > len(shown):
        others = heaviest[_MOST_RANKS:]
        left = sum(total[one.rank] for one in others)
        rest = (
            f"These are the {len(shown)} ranks with most; the other {len(others):,} have "
            f"{duration(left)} together, each at most {duration(total[others[0].rank])}."
        )
    names = tuple(f"{dimension} {name.replace('_', ' ')}" for dimension, name in labels)
    return HeatMap(caption, names, tuple(lines), rest)


def _labels(found: Sequence[Straggler]) -> list[tuple[str, str]]:
    """Dimensions and collectives, those with most waiting first."""
    waits: dict[tuple[str, str], int] = {}
    for one in found:
        for row in one.by_collective:
            label = (row.dimension, row.collective)
            waits[label] = waits.get(label, 0) + row.own_wait_ns
    return sorted(waits, key=lambda label: (-waits[label], label))


def _spot(rank: int, row: Lateness | None, measure: str, most: int) -> Spot:
    if row is None:
        return Spot(0, "", "", None)
    value = getattr(row, measure)
    level = -(-value * _LEVELS // most) if most else 0
    told = f"rank {rank}, {row.dimension} {row.collective}: last in {row.last_arrivals:,} of " + (
        f"{row.calls:,}; imposed {duration(row.imposed_wait_ns)}, "
        f"waited {duration(row.own_wait_ns)} itself"
    )
    moment = at(rank, row.worst) if measure == "imposed_wait_ns" else None
    return Spot(level, milliseconds(value) if value else NONE, told, moment)
