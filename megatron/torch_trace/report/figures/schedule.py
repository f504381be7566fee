# SPDX-License-Identifier: Apache-2.0
"""The schedule of a pipeline as Megatron's papers draw it, above the one of equal stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from megatron.torch_trace.analysis.replay.spans.orders import Pass, Shape, plan_of
from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.report.figures.recorded_passes import RecordedPass, recorded_passes
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
        is_numbered: micro-batches are known by number, and the ideal schedule with them.
        is_derived: there are no spans; threads, sends and receives tell the passes.
    """

    step: int | None
    rows: tuple[StageRow, ...]
    ideal_ns: int
    recorded_ns: int
    is_numbered: bool
    is_derived: bool

    @property
    def said(self) -> str:
        """What the figure shows, a few sentences."""
        colours = (
            "behind them orange where the stage waits for a neighbour and grey where its GPU is "
            "idle."
        )
        if not self.is_numbered:
            return (
                f"Forwards and backwards of step {self.step}; {colours} The blocks have no "
                "numbers: the trace has no spans of phases, and the order of the blocks is not "
                "that of 1F1B without virtual stages."
            )
        source = (
            " The trace has no spans of phases: threads that launch tell forwards from backwards, "
            "and sends and receives part them."
            if self.is_derived
            else ""
        )
        return (
            f"Micro-batches of step {self.step}: forwards and backwards by their numbers, lighter "
            f"ones of a higher virtual stage; {colours} Below each stage, pale: the same "
            "micro-batches in 1F1B with stages of equal cost and no waiting, which take "
            f"{duration(self.ideal_ns)} instead of {duration(self.recorded_ns)}.{source}"
        )


def schedule_figure(analysis: Analysis) -> ScheduleFigure | None:
    """Of the last step whose micro-batches are known on every stage; None without such a step."""
    stages = _stages(analysis)
    passes = [recorded_passes(rank) for rank in stages]
    if not _is_whole_pipeline(stages):
        return None
    is_derived = not all(rank.microbatches for rank in stages)
    shape = _shape(len(stages), passes)
    if shape is None and not is_derived:
        return None
    step = max(set.intersection(*map(_whole_steps, passes)), default=None)
    if step is None:
        return None
    rows = [[one for one in of if one.step == step] for of in passes]
    if sum(map(len, rows)) > _MOST_BLOCKS:
        return None
    shifts = shifts_of(analysis)
    starts, ends = _bounds(stages, rows, shifts)
    ideal = _ideal(shape, rows) if shape else {}
    ideal_ns = round(max((end for _, end in ideal.values()), default=0))
    frame = _Frame(starts, max(ends - starts, ideal_ns, 1))
    drawn = tuple(
        StageRow(
            f"stage {rank.coordinates.get('pp', number)}",
            tuple(frame.blocks(rank, of, shifts[rank.rank])),
            tuple(frame.bubbles(rank, of, shifts[rank.rank])),
            tuple(frame.ideal(ideal, number)),
        )
        for number, (rank, of) in enumerate(zip(stages, rows, strict=True))
    )
    return ScheduleFigure(step, drawn, ideal_ns, ends - starts, bool(ideal), is_derived)


def _stages(analysis: Analysis) -> list[RankResult]:
    """The lowest rank of each stage with micro-batches."""
    found: dict[int, RankResult] = {}
    for rank in analysis.ranks:
        if rank.microbatches or rank.passes:
            found.setdefault(rank.coordinates.get("pp", 0), rank)
    return [found[stage] for stage in sorted(found)]


def _is_whole_pipeline(stages: Sequence[RankResult]) -> bool:
    """False where it is no pipeline, or a stage is missing."""
    numbers = [rank.coordinates.get("pp", 0) for rank in stages]
    if not 1 < len(stages) <= _MOST_STAGES or numbers != list(range(len(stages))):
        return False
    depth = {one.stages for rank in stages for one in rank.pipeline if one.stages}
    return not depth or depth == {len(stages)}


def _shape(stages: int, passes: Sequence[Sequence[RecordedPass]]) -> Shape | None:
    """None where passes have no number, or the schedule is another one."""
    every = [one for of in passes for one in of]
    if not every or any(one.number is None for one in every):
        return None
    counts = {len({one.number for one in of}) for of in passes}
    if len(counts) != 1:
        return None
    shape = Shape(stages, 1 + max(one.chunk for one in every), counts.pop())
    try:
        plan = plan_of(shape)
    except ValueError:
        return None
    return shape if len(plan.passes) <= _MOST_BLOCKS else None


def _whole_steps(passes: Sequence[RecordedPass]) -> set[int]:
    """Steps with a micro-batch in both directions."""
    ways: dict[tuple[int, int | None, int], set[str]] = {}
    for one in passes:
        if one.step is not None:
            ways.setdefault((one.step, one.number, one.chunk), set()).add(one.direction)
    return {step for (step, *_), found in ways.items() if len(found) == 2}


def _bounds(
    stages: Sequence[RankResult],
    rows: Sequence[Sequence[RecordedPass]],
    shifts: dict[int, int],
) -> tuple[int, int]:
    moments = [
        (one.on_gpu.start_ns + shifts[rank.rank], one.on_gpu.duration_ns)
        for rank, of in zip(stages, rows, strict=True)
        for one in of
    ]
    return min(at for at, _ in moments), max(at + length for at, length in moments)


def _ideal(shape: Shape, rows: Sequence[Sequence[RecordedPass]]) -> dict[Pass, tuple[float, float]]:
    """When each pass runs if all take the mean of the work that was recorded, and nobody waits."""
    work: dict[str, list[int]] = {"forward": [], "backward": []}
    for of in rows:
        for recorded in of:
            length = recorded.on_gpu.duration_ns
            work[recorded.direction].append(min(recorded.gpu_ns or length, length))
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

    def blocks(self, rank: RankResult, passes: Sequence[RecordedPass], shift: int) -> list[Block]:
        found = []
        for one in passes:
            moment = one.on_gpu
            left, width = self._part(moment.start_ns + shift - self.start, moment.duration_ns)
            number = "" if one.number is None else str(one.number)
            told = f"{one.direction} {number}".rstrip()
            found.append(
                Block(
                    left,
                    width,
                    one.direction,
                    one.chunk,
                    number if width >= _LEAST_LABEL else "",
                    f"{told}: {duration(moment.duration_ns)}",
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

    def bubbles(self, rank: RankResult, passes: Sequence[RecordedPass], shift: int) -> list[Bubble]:
        """Slices between the first and the last micro-batch in which the stage mostly waits."""
        course = rank.course
        if course is None or not passes:
            return []
        moments = [one.on_gpu for one in passes]
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
