# SPDX-License-Identifier: Apache-2.0
"""The schedule of a pipeline as Megatron's papers draw it, above the one of equal stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from megatron.torch_trace.analysis.replay.spans.orders import Pass, Shape, plan_of
from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.schedule.microbatches import MicrobatchRow
from megatron.torch_trace.analysis.timeline.moment import Moment
from megatron.torch_trace.report.tables import At
from megatron.torch_trace.report.timebase import shifts_of
from megatron.torch_trace.wording import duration

_MOST_STAGES, _MOST_BLOCKS = 32, 2000
_DECIMALS = 2
_LEAST_LABEL = 1.6
"""Width in % from which on a block has room for its number."""


@dataclass(frozen=True, slots=True)
class Block:
    """A forward or a backward; left and width are % of the drawing."""

    left: float
    width: float
    direction: str
    chunk: int
    label: str
    told: str
    at: At | None


@dataclass(frozen=True, slots=True)
class Bubble:
    """Time in which a stage computes nothing: `exposed_communication` or `idle`."""

    left: float
    width: float
    cause: str


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage: what it did, and what it would do in the ideal schedule."""

    label: str
    blocks: tuple[Block, ...]
    bubbles: tuple[Bubble, ...]
    ideal: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class ScheduleFigure:
    """The figure of one step.

    Args:
        rows: the stages, the first one on top.
        ideal_ns: how long the micro-batches take in the ideal schedule.
        recorded_ns: and how long they took.
    """

    step: int | None
    rows: tuple[StageRow, ...]
    ideal_ns: int
    recorded_ns: int

    @property
    def said(self) -> str:
        """What the figure shows, a sentence or two."""
        return (
            f"Micro-batches of step {self.step}: forwards and backwards by their numbers, lighter "
            "ones of a higher virtual stage; behind them orange where the stage waits for a "
            "neighbour and grey where its GPU is idle. Below each stage, pale: the same "
            "micro-batches in 1F1B with stages of equal cost and no waiting, which take "
            f"{duration(self.ideal_ns)} instead of {duration(self.recorded_ns)}."
        )


def schedule_figure(analysis: Analysis) -> ScheduleFigure | None:
    """Of the last step whose micro-batches are known on every stage; None without such a step."""
    stages = _stages(analysis)
    shape = _shape(stages)
    if shape is None:
        return None
    steps = [{row.step for row in rank.microbatches if _is_whole(row)} for rank in stages]
    common = set.intersection(*steps) - {None}
    if not common:
        return None
    step = max(one for one in common if one is not None)
    shifts = shifts_of(analysis)
    rows = [[row for row in rank.microbatches if row.step == step] for rank in stages]
    starts, ends = _bounds(stages, rows, shifts)
    ideal = _ideal(shape, rows)
    ideal_ns = round(max(end for _, end in ideal.values()))
    whole = max(ends - starts, ideal_ns, 1)
    frame = _Frame(starts, whole)
    drawn = tuple(
        StageRow(
            f"stage {rank.coordinates.get('pp', number)}",
            tuple(frame.blocks(rank, of, shifts[rank.rank])),
            tuple(frame.bubbles(rank, of, shifts[rank.rank])),
            tuple(frame.ideal(ideal, number)),
        )
        for number, (rank, of) in enumerate(zip(stages, rows, strict=True))
    )
    return ScheduleFigure(step, drawn, ideal_ns, ends - starts)


def _stages(analysis: Analysis) -> list[RankResult]:
    """The lowest rank of each stage with micro-batches."""
    found: dict[int, RankResult] = {}
    for rank in analysis.ranks:
        if rank.microbatches:
            found.setdefault(rank.coordinates.get("pp", 0), rank)
    return [found[stage] for stage in sorted(found)]


def _shape(stages: Sequence[RankResult]) -> Shape | None:
    """None where it is no pipeline, a stage is missing, or the schedule is another one."""
    numbers = [rank.coordinates.get("pp", 0) for rank in stages]
    if not 1 < len(stages) <= _MOST_STAGES or numbers != list(range(len(stages))):
        return None
    rows = [row for rank in stages for row in rank.microbatches]
    if any(row.number is None for row in rows):
        return None
    chunks = 1 + max((row.chunk or 0) for row in rows)
    counts = {len({row.number for row in rank.microbatches}) for rank in stages}
    depth = {one.stages for rank in stages for one in rank.pipeline if one.stages}
    if len(counts) != 1 or (depth and depth != {len(stages)}):
        return None
    shape = Shape(len(stages), chunks, counts.pop())
    try:
        plan = plan_of(shape)
    except ValueError:
        return None
    return shape if len(plan.passes) <= _MOST_BLOCKS else None


def _is_whole(row: MicrobatchRow) -> bool:
    return row.forward_on_gpu is not None and row.backward_on_gpu is not None


def _moments(row: MicrobatchRow) -> list[tuple[str, Moment]]:
    both = (("forward", row.forward_on_gpu), ("backward", row.backward_on_gpu))
    return [(direction, moment) for direction, moment in both if moment is not None]


def _bounds(
    stages: Sequence[RankResult],
    rows: Sequence[Sequence[MicrobatchRow]],
    shifts: dict[int, int],
) -> tuple[int, int]:
    moments = [
        (moment.start_ns + shifts[rank.rank], moment.duration_ns)
        for rank, of in zip(stages, rows, strict=True)
        for row in of
        for _, moment in _moments(row)
    ]
    return min(at for at, _ in moments), max(at + length for at, length in moments)


def _ideal(
    shape: Shape, rows: Sequence[Sequence[MicrobatchRow]]
) -> dict[Pass, tuple[float, float]]:
    """When each pass runs if all take the mean of the work that was recorded, and nobody waits."""
    work: dict[str, list[int]] = {"forward": [], "backward": []}
    for of in rows:
        for row in of:
            for direction, moment in _moments(row):
                own = getattr(row, f"{direction}_gpu_ns")
                work[direction].append(min(own or moment.duration_ns, moment.duration_ns))
    mean = {direction: fmean(times) if times else 0.0 for direction, times in work.items()}
    plan = plan_of(shape)
    ends: list[float] = []
    for one, previous, needed in zip(plan.passes, plan.previous, plan.needed, strict=True):
        start = max(ends[previous] if previous >= 0 else 0.0, ends[needed] if needed >= 0 else 0.0)
        ends.append(start + mean["forward" if one.is_forward else "backward"])
    return {
        one: (end - mean["forward" if one.is_forward else "backward"], end)
        for one, end in zip(plan.passes, ends, strict=True)
    }


@dataclass(frozen=True, slots=True)
class _Frame:
    """From where the drawing begins, and how long it is; ns."""

    start: int
    length: int

    def _part(self, at: float, length: float) -> tuple[float, float]:
        return (
            round(100 * at / self.length, _DECIMALS),
            max(round(100 * length / self.length, _DECIMALS), 0.05),
        )

    def blocks(self, rank: RankResult, rows: Sequence[MicrobatchRow], shift: int) -> list[Block]:
        found = []
        for row in rows:
            for direction, moment in _moments(row):
                left, width = self._part(moment.start_ns + shift - self.start, moment.duration_ns)
                found.append(
                    Block(
                        left,
                        width,
                        direction,
                        row.chunk or 0,
                        str(row.number) if width >= _LEAST_LABEL else "",
                        f"{direction} {row.number}: {duration(moment.duration_ns)}",
                        At(rank.rank, moment.start_ns, moment.duration_ns),
                    )
                )
        return found

    def ideal(self, times: dict[Pass, tuple[float, float]], stage: int) -> list[Block]:
        found = []
        for one, (start, end) in times.items():
            if one.stage == stage:
                left, width = self._part(start, end - start)
                direction = "forward" if one.is_forward else "backward"
                label = str(one.microbatch) if width >= _LEAST_LABEL else ""
                told = f"ideal {direction} {one.microbatch}: {duration(end - start)}"
                found.append(Block(left, width, direction, one.chunk, label, told, None))
        return found

    def bubbles(self, rank: RankResult, rows: Sequence[MicrobatchRow], shift: int) -> list[Bubble]:
        """Slices between the first and the last micro-batch in which the stage mostly waits."""
        course = rank.course
        if course is None or not rows:
            return []
        moments = [moment for row in rows for _, moment in _moments(row)]
        first = min(moment.start_ns for moment in moments)
        last = max(moment.start_ns + moment.duration_ns for moment in moments)
        found: list[Bubble] = []
        edges = zip(course.edges_ns[:-1], course.edges_ns[1:], strict=True)
        for n, (start, end) in enumerate(edges):
            if end <= first or start >= last:
                continue
            waiting = course.exposed_communication[n]
            idle = end - start - waiting - course.compute[n] - course.exposed_memory[n]
            if course.compute[n] >= max(waiting, idle):
                continue
            left, width = self._part(start + shift - self.start, end - start)
            cause = "exposed_communication" if waiting > idle else "idle"
            if (
                found
                and found[-1].cause == cause
                and abs(found[-1].left + found[-1].width - left) < 0.05
            ):
                left, width = found[-1].left, round(left + width - found[-1].left, _DECIMALS)
                found.pop()
            found.append(Bubble(max(0.0, left), min(width, 100 - max(0.0, left)), cause))
        return found
