# SPDX-License-Identifier: Apache-2.0
"""Micro-batches one by one, and the pipeline's bubble by their place in 1F1B.

GPU of stage 0    F0 F1 .  .  B0 F2 B1 .  B2
micro-batch ends    |  |        |  |  |    |
bubble of                ------           -        the one that ends next: B0, B2
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import mean
from typing import Any

import numpy as np

from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.moment import Moment
from megatron.torch_trace.analysis.timeline.span_names import (
    BACKWARD,
    FORWARD,
    MicrobatchSpan,
    microbatch_span,
)
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Intervals, ints

_PLACES_IN_1F1B = ("warmup", "steady", "cooldown", "unknown")


@dataclass(frozen=True, slots=True)
class MicrobatchRow:
    """One micro-batch on one stage; None for a direction that is not in the window.

    Args:
        step: number of the step, None for a trace without.
        number, chunk: micro-batch and virtual stage, None where the span does not tell.
        forward_place, backward_place: in 1F1B: warmup, steady or cooldown; None if unknown.
        forward_ns, backward_ns: of the CPU, as long as the span.
        forward_gpu_ns, backward_gpu_ns: sum of GPU work launched meanwhile, cut to the window.
        forward_on_gpu, backward_on_gpu: from the first to the last of that which computes.
        model: its name, where a loop has several.
    """

    step: int | None
    number: int | None
    chunk: int | None
    forward_place: str | None = None
    backward_place: str | None = None
    forward_ns: int | None = None
    backward_ns: int | None = None
    forward_gpu_ns: int | None = None
    backward_gpu_ns: int | None = None
    forward_on_gpu: Moment | None = field(default=None, compare=False)
    backward_on_gpu: Moment | None = field(default=None, compare=False)
    model: str | None = None


@dataclass(frozen=True, slots=True)
class BubbleRow:
    """The pipeline's bubble before and inside the micro-batches of one place in 1F1B.

    Args:
        place: warmup, steady, cooldown, or unknown.
        microbatches: forwards and backwards.
        bubble_ns: the parts add up to that of the steps.
    """

    place: str
    microbatches: int
    bubble_ns: int


@dataclass(frozen=True, slots=True)
class MicrobatchMeans:
    """The micro-batches at one place in 1F1B in one direction.

    Args:
        direction: forward or backward.
        place, model: as in `MicrobatchRow`.
        count: how many there are.
        cpu_ns, gpu_ns: means of the time on the CPU and of the GPU work.
        longest, heaviest: the one that takes longest on the CPU, and the one with most GPU work.
    """

    direction: str
    place: str | None
    count: int
    cpu_ns: float
    gpu_ns: float
    longest: MicrobatchRow
    heaviest: MicrobatchRow
    model: str | None = None


@dataclass(frozen=True, slots=True)
class _Span:
    """One direction of a micro-batch; several rows where it took turns with another one."""

    rows: list[int]
    name: MicrobatchSpan
    step: int | None


def microbatch_rows(timeline: Timeline) -> tuple[MicrobatchRow, ...]:
    """Every micro-batch with a span that begins in the window, in the order of the forwards.

    Times in ns. Source: docs/computed.md, "Phases".
    """
    ops = timeline.activity.ops
    inside = timeline.in_window & (timeline.microbatch != NONE)
    spans, of = np.unique(timeline.microbatch[inside], return_inverse=True)
    sums = np.zeros(len(spans), dtype=np.int64)
    np.add.at(sums, of, timeline.clipped[inside])
    work = dict(zip(spans.tolist(), sums.tolist(), strict=True))
    computed = _computed(timeline)
    found: list[dict[str, Any]] = []
    waiting: dict[tuple[Any, ...], dict[str, Any]] = {}
    for span in _spans(timeline):
        name, direction = span.name, span.name.direction
        which: dict[str, Any] = {
            "step": span.step,
            "number": name.number,
            "chunk": name.chunk,
            "model": name.model,
        }
        key = tuple(which.values())
        entry: dict[str, Any] | None = None
        if direction != FORWARD and name.number is not None:
            entry = waiting.pop(key, None)
        if entry is None:
            entry = which
            found.append(entry)
        if direction == FORWARD and name.number is not None:
            waiting[key] = entry
        entry[f"{direction}_place"] = name.place
        entry[f"{direction}_ns"] = sum(int(ops.end[row] - ops.start[row]) for row in span.rows)
        entry[f"{direction}_gpu_ns"] = sum(work.get(row, 0) for row in span.rows)
        entry[f"{direction}_on_gpu"] = _first_to_last(
            [moment for row in span.rows if (moment := computed.get(row))]
        )
    return tuple(MicrobatchRow(**entry) for entry in found)


def _first_to_last(moments: list[Moment]) -> Moment | None:
    if not moments:
        return None
    start = min(one.start_ns for one in moments)
    return Moment(start, max(one.start_ns + one.duration_ns for one in moments) - start)


def by_place(rows: Iterable[MicrobatchRow]) -> list[MicrobatchMeans]:
    """Forwards before backwards; places and models in the order in which they are found."""
    groups: dict[tuple[str, str | None, str | None], list[MicrobatchRow]] = {}
    for direction in (FORWARD, BACKWARD):
        for row in rows:
            if getattr(row, f"{direction}_ns") is not None:
                place = getattr(row, f"{direction}_place")
                groups.setdefault((direction, place, row.model), []).append(row)
    return [_means(*key, found) for key, found in groups.items()]


def _means(
    direction: str, place: str | None, model: str | None, rows: list[MicrobatchRow]
) -> MicrobatchMeans:
    cpu, gpu = (attrgetter(f"{direction}{unit}") for unit in ("_ns", "_gpu_ns"))
    return MicrobatchMeans(
        direction,
        place,
        len(rows),
        mean(map(cpu, rows)),
        mean(map(gpu, rows)),
        max(rows, key=cpu),
        max(rows, key=gpu),
        model,
    )


def _computed(timeline: Timeline) -> dict[int, Moment]:
    """By span the time on the GPU from the first to the last work that computes."""
    gpu = timeline.activity.gpu
    computing = timeline.is_compute & timeline.in_window & (timeline.microbatch != NONE)
    rows, of = np.unique(timeline.microbatch[computing], return_inverse=True)
    first = np.full(len(rows), np.iinfo(np.int64).max)
    last = np.zeros(len(rows), dtype=np.int64)
    np.minimum.at(first, of, gpu.start[computing])
    np.maximum.at(last, of, gpu.end[computing])
    columns = (rows.tolist(), first.tolist(), (last - first).tolist())
    return {row: Moment(start, length) for row, start, length in zip(*columns, strict=True)}


def bubble_rows(
    timeline: Timeline, waiting: Intervals, bounds: Iterable[tuple[int, int]]
) -> tuple[BubbleRow, ...]:
    """The bubble by place in 1F1B; empty without spans of micro-batches.

    Args:
        timeline: of one rank.
        waiting: when the stage computes nothing: exposed send/recv and idle.
        bounds: start and end of the pipeline in each step, ns.

    Returns:
        Times in ns, which add up to the bubble of the stage. Source: docs/computed.md, "Phases".
    """
    spans = _spans(timeline)
    if not spans:
        return ()
    end_of = {row: at.start_ns + at.duration_ns for row, at in _computed(timeline).items()}
    # Work of a single step may run on behind it: what is before it, is in the step all the same.
    behind = timeline.window.end
    found = {place: [0, 0] for place in _PLACES_IN_1F1B}
    for start, end in bounds:
        ends = sorted(
            (last, span.name.place or "unknown")
            for span in spans
            if start < (last := max(end_of.get(row, NONE) for row in span.rows))
            and min(last, behind) <= end
        )
        edges = np.clip(ints([start, *(one for one, _ in ends[:-1]), end]), start, end)
        parts = waiting.covered(edges[:-1], edges[1:]).tolist()
        for part, (_, place) in zip(parts, ends or [(end, "unknown")], strict=True):
            found[place][0] += len(ends) > 0
            found[place][1] += part
    return tuple(BubbleRow(place, *values) for place, values in found.items() if any(values))


def _spans(timeline: Timeline) -> list[_Span]:
    activity, window = timeline.activity, timeline.window
    ops, rows = activity.ops, timeline.phase_spans
    rows = rows[timeline.begin_inside(rows)]
    steps = window.step_index(ops.start[rows]).tolist() if window.steps else [NONE] * len(rows)
    found: list[_Span] = []
    parts: dict[tuple[MicrobatchSpan, int | None], list[int]] = {}
    for row, step in zip(rows.tolist(), steps, strict=True):
        name = microbatch_span(activity.names[int(ops.name[row])])
        if name is None:
            continue
        number = window.steps[step].number if step != NONE else None
        if not name.is_part:
            found.append(_Span([row], name, number))
        elif (name, number) in parts:
            parts[name, number].append(row)
        else:
            found.append(_Span([row], name, number))
            parts[name, number] = found[-1].rows
    return found
