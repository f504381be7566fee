# SPDX-License-Identifier: Apache-2.0
"""All ranks over time as one picture: a row a rank, a character a slice of time."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.results.shown_ranks import shown_ranks
from megatron.torch_trace.analysis.timeline.time_slices import Course
from megatron.torch_trace.report.coordinates import used_dimensions
from megatron.torch_trace.report.timebase import shifts_of

PARTS = ("compute", "exposed_communication", "exposed_memory", "idle")
LEVELS = 6
ROWS, CELLS = ";", "|"
"""What stands between rows and between cells: the page would show a tab or a new line as text."""
_WITHOUT_MARKS = str.maketrans(dict.fromkeys(ROWS + CELLS, " "))
_FIRST = ord("A")
_MANY_RANKS = 256


@dataclass(frozen=True, slots=True)
class HeatFigure:
    """What the page's script draws.

    Args:
        ranks: how many rows there are; more: ranks without one (`shown_ranks` chooses).
        orders: how rows can be ordered: `rank`, a dimension, `host`, `idle`.
        rows: a part a rank, and in it its number, coordinates, host, where its slices begin
            and end on the common clock and begin in its own trace (ns), the share of idle time, and
            a character for each slice: its largest part and how much of the slice that is.
    """

    ranks: int
    orders: tuple[str, ...]
    rows: str
    more: int = 0


def heat_figure(analysis: Analysis) -> HeatFigure | None:
    """None for a single rank, which the lanes show, and where nothing is known."""
    known = [rank for rank in shown_ranks(analysis) if rank.course is not None]
    if len(known) < 2:
        return None
    shifts = shifts_of(analysis)
    step = 2 if len(known) > _MANY_RANKS else 1
    first = min(rank.course.edges_ns[0] + shifts[rank.rank] for rank in known if rank.course)
    rows = [_row(rank, shifts[rank.rank] - first, step) for rank in known]
    used = sorted(used_dimensions(analysis))
    hosts = ["host"] if len({rank.host_name for rank in known} - {None}) > 1 else []
    more = sum(rank.course is not None for rank in analysis.ranks) - len(known)
    return HeatFigure(len(known), ("rank", *used, *hosts, "idle"), ROWS.join(rows), more)


def _row(rank: RankResult, shift: int, step: int) -> str:
    course = rank.course
    assert course is not None
    start, end = course.edges_ns[0], course.edges_ns[-1]
    idle = rank.breakdown.idle / rank.window_ns if rank.breakdown and rank.window_ns else 0.0
    coordinates = " ".join(f"{name}{at}" for name, at in rank.coordinates.items())
    host = (rank.host_name or "").translate(_WITHOUT_MARKS)
    cells = (rank.rank, coordinates, host, start + shift, end + shift, start, round(idle, 3))
    return CELLS.join((*map(str, cells), _letters(course, step)))


def _letters(course: Course, step: int) -> str:
    """`A` to `X`: the part with most of the slice, and in six levels how much of it."""
    found = []
    for n in range(0, len(course.compute), step):
        last = min(n + step, len(course.compute))
        length = course.edges_ns[last] - course.edges_ns[n]
        parts = [sum(getattr(course, name)[n:last]) for name in PARTS[:-1]]
        parts.append(max(0, length - sum(parts)))
        largest = max(range(len(PARTS)), key=lambda one: parts[one])
        level = min(LEVELS - 1, parts[largest] * LEVELS // max(1, length))
        found.append(chr(_FIRST + largest * LEVELS + level))
    return "".join(found)
