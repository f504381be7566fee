# SPDX-License-Identifier: Apache-2.0
"""Ranks side by side over time: what each GPU did, its micro-batches, the pipeline's bubbles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.schedule.microbatches import MicrobatchRow
from megatron.torch_trace.analysis.timeline.moment import Moment
from megatron.torch_trace.analysis.timeline.time_slices import Course
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_NAMES, BUSY_PARTS
from megatron.torch_trace.report.coordinates import used_dimensions, where
from megatron.torch_trace.report.figures.heat_map import heat_figure
from megatron.torch_trace.report.figures.path_strip import path_strip
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.tables import At
from megatron.torch_trace.report.timebase import shifts_of
from megatron.torch_trace.wording import duration

WIDTH, HEIGHT = 1000, 24
"""Of a lane, in units of its drawing; a page scales it to its own width."""

_MOST_LANES = 16
_MOST_BLOCKS = 3000
_LEAST_LABEL = 14
_DECIMALS = 1
_LABEL_WIDTH = 70
_BLOCKS = (("forward", "forward micro-batch"), ("backward", "backward micro-batch"))
"""What `step 1234` takes of a lane, with some air."""


@dataclass(frozen=True, slots=True)
class Block:
    """A micro-batch in one direction."""

    x: float
    width: float
    direction: str
    label: str
    told: str
    at: At


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank. `paths`: (colour, SVG path) from the top of the pile to the bottom."""

    label: str
    paths: tuple[tuple[str, str], ...]
    blocks: tuple[Block, ...]
    at: At


@dataclass(frozen=True, slots=True)
class Span:
    """The time that a figure shows, on the common clock of all ranks, ns."""

    start: int
    end: int

    def x(self, time: int) -> float:
        """Where a time is in the drawing."""
        return round(WIDTH * (time - self.start) / max(self.end - self.start, 1), _DECIMALS)


def section(subject: Subject) -> Section:
    """What each GPU did over the window."""
    analysis = subject.analysis
    title = "Over time"
    shown = _shown(analysis)
    if not shown:
        return Section("over_time", title, "The traces do not say what the GPUs did.")
    shifts = shifts_of(analysis)
    starts = [rank.course.edges_ns[0] + shifts[rank.rank] for rank in shown if rank.course]
    ends = [rank.course.edges_ns[-1] + shifts[rank.rank] for rank in shown if rank.course]
    span = Span(min(starts), max(ends))
    used = used_dimensions(analysis)
    drawn = _steps_drawn(shown)
    lanes = [_lane(rank, where(rank, used), shifts[rank.rank], span, drawn) for rank in shown]
    more = len(analysis.ranks) - len(shown)
    stages = len({rank.coordinates.get("pp", 0) for rank in analysis.ranks}) > 1
    chosen = "the lowest rank of each stage" if stages else "the least and the most idle"
    data = {
        "lanes": lanes,
        "heat": heat_figure(analysis),
        "path": path_strip(analysis),
        "blocks": any(lane.blocks for lane in lanes),
        "marks": _marks(shown[0], shifts[shown[0].rank], span),
        "ticks": _ticks(span),
        "width": WIDTH,
        "height": HEIGHT,
        "aligned": len(shown) > 1 and all(c.offset_ns is not None for c in analysis.clocks),
        "rest": " ".join(
            (
                f"The figure shows {chosen} of {len(analysis.ranks):,} ranks." if more else "",
                "Only the micro-batches of the first steps are drawn, because there are too many."
                if any(row.step not in drawn for rank in shown for row in rank.microbatches)
                else "",
            )
        ).strip(),
        "slice": duration((shown[0].window_ns if shown else 0) / _slices(shown[0].course)),
    }
    blocks = _BLOCKS if data["blocks"] else ()
    return Section("over_time", title, legend=(*BREAKDOWN_NAMES.items(), *blocks), data=data)


def _slices(course: Course | None) -> int:
    return len(course.compute) if course else 1


def _shown(analysis: Analysis) -> list[RankResult]:
    """All ranks; of many one a stage, or the extremes where there are no stages."""
    known = [rank for rank in analysis.ranks if rank.course is not None]
    if len(known) <= _MOST_LANES // 2:
        return known
    stages: dict[int, RankResult] = {}
    for rank in known:
        stages.setdefault(rank.coordinates.get("pp", 0), rank)
    if len(stages) > 1:
        chosen = [stages[number] for number in sorted(stages)]
        step = -(-len(chosen) // _MOST_LANES)
        # Of very many stages every second, third, ... and always the last one.
        return chosen[::step] + ([chosen[-1]] if (len(chosen) - 1) % step else [])
    return [rank for rank in known if rank.rank in analysis.summary.extremes]


def _steps_drawn(shown: Sequence[RankResult]) -> frozenset[int | None]:
    """Steps whose micro-batches are drawn: the first ones, as many as a page can hold."""
    counts: dict[int | None, int] = {}
    for rank in shown:
        for row in rank.microbatches:
            counts[row.step] = counts.get(row.step, 0) + 2
    steps: set[int | None] = set()
    left = _MOST_BLOCKS
    for step, count in counts.items():
        left -= count
        if left < 0:
            break
        steps.add(step)
    return frozenset(steps)


def _lane(
    rank: RankResult, coordinates: str, shift: int, span: Span, drawn: frozenset[int | None]
) -> Lane:
    assert rank.course is not None
    label = rank.name + (f" {coordinates}" if coordinates else "")
    blocks = tuple(
        _block(row, direction, moment, rank.rank, shift, span)
        for row in rank.microbatches
        if row.step in drawn
        for direction, moment in (
            ("forward", row.forward_on_gpu),
            ("backward", row.backward_on_gpu),
        )
        if moment is not None
    )
    start, end = rank.course.edges_ns[0], rank.course.edges_ns[-1]
    paths = _paths(rank.course, shift, span)
    return Lane(label, paths, blocks, At(rank.rank, start, end - start))


def _paths(course: Course, shift: int, span: Span) -> tuple[tuple[str, str], ...]:
    """One path a colour, each as high as its pile, so that the lower ones are drawn over it."""
    edges = [span.x(edge + shift) for edge in course.edges_ns]
    lengths = [b - a for a, b in zip(course.edges_ns[:-1], course.edges_ns[1:], strict=True)]
    piles = [0.0] * len(lengths)
    found = []
    for name in BUSY_PARTS:
        values = getattr(course, name)
        piles = [p + v / max(n, 1) for p, v, n in zip(piles, values, lengths, strict=True)]
        found.append((name, _path(edges, piles)))
    return tuple(reversed(found))


def _path(edges: Sequence[float], heights: Sequence[float]) -> str:
    parts = [f"M{edges[0]:g} {HEIGHT}"]
    previous = None
    for right, share_ in zip(edges[1:], heights, strict=True):
        top = round(HEIGHT * (1 - min(share_, 1.0)), 1)
        if top != previous:
            parts.append(f"V{top:g}")
        parts.append(f"H{right:g}")
        previous = top
    return "".join(parts) + f"V{HEIGHT}z"


def _block(
    row: MicrobatchRow, direction: str, moment: Moment, rank: int, shift: int, span: Span
) -> Block:
    left = span.x(moment.start_ns + shift)
    right = span.x(moment.start_ns + moment.duration_ns + shift)
    name = "" if row.number is None else f"{row.number}"
    if row.chunk is not None:
        name += f".{row.chunk}"
    of = f" of {row.model}" if row.model else ""
    place = getattr(row, f"{direction}_place")
    told = f"{direction} {name or 'micro-batch'}{of}{f', {place}' if place else ''}: " + duration(
        moment.duration_ns
    )
    width = max(round(right - left, _DECIMALS), 0.5)
    label = name if width >= _LEAST_LABEL else ""
    return Block(left, width, direction, label, told, At(rank, moment.start_ns, moment.duration_ns))


def _marks(rank: RankResult, shift: int, span: Span) -> list[tuple[float, str]]:
    """Where steps begin, by the clock of the first rank; of many those whose names have room."""
    marks: list[tuple[float, str]] = []
    for step in rank.steps:
        x = span.x(step.start_ns + shift)
        if not marks or x >= marks[-1][0] + _LABEL_WIDTH:
            marks.append((x, f"step {step.step}"))
    return marks


def _ticks(span: Span) -> list[tuple[float, str]]:
    """Four to eight round times from the start of the figure."""
    length = span.end - span.start
    unit = 1
    for candidate in (n * 10**e for e in range(19) for n in (1, 2, 5)):
        unit = candidate
        if length / candidate <= 8:
            break
    return [
        (span.x(span.start + time), f"{time / 1e6:,.10g} ms") for time in range(0, length + 1, unit)
    ]
