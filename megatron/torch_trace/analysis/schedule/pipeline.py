# SPDX-License-Identifier: Apache-2.0
"""The pipeline's bubble on one stage: waiting between its first and its last micro-batch.

    stage 0   F1 F2 .  .  B1 B2 |  optimizer      . is bubble: receive or send with no compute
    stage 1   .  F1 B1 F2 B2 .  |                 beside it, or nothing at all

In 1F1B with p stages, m micro-batches and v virtual stages (chunks) of equal cost the bubble is
(p-1)/(vm+p-1) of the time between the first and the last micro-batch (Narayanan et al. 2021,
"Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section 2.2, as a
share of the whole).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.communication.collectives import CollectiveCalls, canonical
from megatron.torch_trace.analysis.communication.dimensions import dimension_of
from megatron.torch_trace.analysis.host.data_loader import is_loader
from megatron.torch_trace.analysis.timeline.activity import NONE, Collective
from megatron.torch_trace.analysis.timeline.code_columns import present, rows_with
from megatron.torch_trace.analysis.timeline.command_line import settings, virtual_stages
from megatron.torch_trace.analysis.timeline.kernel_names import family_of
from megatron.torch_trace.analysis.timeline.span_names import (
    FORWARD,
    MicrobatchSpan,
    is_optimizer,
    microbatch_span,
)
from megatron.torch_trace.analysis.timeline.steps import Step
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Intervals

POINT_TO_POINT = ("send", "recv", "send_recv")
_MODEL_FAMILIES = ("gemm", "attention")
_MOST_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """One step of one stage, times in ns.

    Args:
        rank, step: where and when.
        stage, stages: position in the pipeline and its length; None if the trace does not tell.
        microbatches: from spans, else counted from the schedule's sends; None if neither is there.
        chunks: virtual stages of the rank; 1 without interleaving; None if the trace does not tell.
        start_ns, end_ns: first to last micro-batch on the GPU: from the first receive or matrix
            product to the end of the last send or of the last work launched by the backward pass.
        compute_ns: compute in between.
        exposed_pipeline_ns: send/recv beside which nothing computes.
        idle_ns: no GPU work at all.
        bubble_ns: exposed_pipeline_ns + idle_ns.
        bubble_share: of end - start.
        ideal_share: (p-1)/(vm+p-1), None if p or m is unknown.
    """

    rank: int
    step: int
    stage: int | None
    stages: int | None
    microbatches: int | None
    chunks: int | None
    start_ns: int
    end_ns: int
    compute_ns: int
    exposed_pipeline_ns: int
    idle_ns: int
    bubble_ns: int
    bubble_share: float
    ideal_share: float | None


class Schedule(NamedTuple):
    """Micro-batches of a step and virtual stages of a rank; None where the trace does not tell.

    Where only their product is known, it is `microbatches`, and `chunks` is None.
    """

    microbatches: int | None
    chunks: int | None

    @property
    def passes(self) -> int | None:
        """Forwards of one rank in one step: micro-batches times chunks."""
        return None if self.microbatches is None else self.microbatches * (self.chunks or 1)


def pipeline_steps(
    timeline: Timeline, calls: CollectiveCalls, rank: int
) -> tuple[PipelineStep, ...]:
    """One entry a step, times in ns, shares of 1; empty for a rank without pipeline communication.

    Of a step in which several models train there is none: each has a schedule of its own.

    Source: docs/computed.md, "Pipeline"; the ideal is that of Narayanan et al., see the module.
    """
    mask = sends_and_receives(timeline, calls)
    if not mask.any():
        return ()
    gpu = timeline.activity.gpu
    exposed, idle = _waiting(timeline, mask)
    stage, stages = _position(timeline)
    model = model_work(timeline)
    backward = launched_elsewhere(timeline) & timeline.is_compute
    found = []
    for number, step in enumerate(timeline.window.steps):
        here = timeline.step_of == number
        begin = gpu.start[here & (mask | model)]
        finish = gpu.end[here & (mask | model | backward)]
        if not len(begin) or not (here & mask).any():
            continue
        spans = _forwards(timeline, step)
        if len({span.model for span in spans}) > 1:
            continue
        start = max(int(begin.min()), timeline.window.start)
        end = min(int(finish.max()), timeline.window.end)
        schedule = _spanned(spans) or _schedule(timeline, step, stage, stages)
        found.append(
            _measure(timeline, exposed, idle, rank, step, (stage, stages, schedule), (start, end))
        )
    return tuple(found)


def pipeline_waiting(timeline: Timeline, calls: CollectiveCalls) -> Intervals:
    """When the stage waits, in the whole window: exposed send/recv, and no GPU work at all.

    Intervals in ns of the trace's own clock. Source: docs/computed.md, "Pipeline".
    """
    exposed, idle = _waiting(timeline, sends_and_receives(timeline, calls))
    return exposed.union(idle)


def sends_and_receives(timeline: Timeline, calls: CollectiveCalls) -> npt.NDArray[np.bool_]:
    """The pipeline's, by row of `activity.gpu`."""
    kinds = [
        code
        for code, kind in enumerate(calls.kinds)
        if kind.dimension == "pp" and kind.collective in POINT_TO_POINT
    ]
    mask = np.zeros(len(timeline.activity.gpu), dtype=bool)
    mask[calls.rows[rows_with(calls.kind, kinds, len(calls.kinds))]] = True
    return mask


def _waiting(
    timeline: Timeline, sends_and_receives: npt.NDArray[np.bool_]
) -> tuple[Intervals, Intervals]:
    exposed = timeline.union(sends_and_receives).minus(timeline.sets.compute)
    return exposed, timeline.sets.busy.gaps(timeline.window.start, timeline.window.end)


def _measure(
    timeline: Timeline,
    exposed: Intervals,
    idle: Intervals,
    rank: int,
    step: Step,
    position: tuple[int | None, int | None, Schedule],
    bounds: tuple[int, int],
) -> PipelineStep:
    stage, stages, schedule = position
    passes = schedule.passes
    start, end = bounds
    waiting = int(exposed.covered([start], [end])[0])
    nothing = int(idle.covered([start], [end])[0])
    return PipelineStep(
        rank=rank,
        step=step.number,
        stage=stage,
        stages=stages,
        microbatches=schedule.microbatches,
        chunks=schedule.chunks,
        start_ns=start,
        end_ns=end,
        compute_ns=int(timeline.sets.compute.covered([start], [end])[0]),
        exposed_pipeline_ns=waiting,
        idle_ns=nothing,
        bubble_ns=waiting + nothing,
        bubble_share=(waiting + nothing) / (end - start) if end > start else 0.0,
        ideal_share=(stages - 1) / (passes + stages - 1) if stages and passes else None,
    )


def _position(timeline: Timeline) -> tuple[int | None, int | None]:
    metadata = timeline.activity.metadata
    stage = metadata.coordinates.get("pp")
    for group in metadata.process_groups:
        ranks = group["ranks"]
        if dimension_of(group.get("pg_desc")) == "pp" and metadata.rank in ranks:
            return ranks.index(metadata.rank) if stage is None else stage, len(ranks)
    return stage, None


def model_work(timeline: Timeline) -> npt.NDArray[np.bool_]:
    """Matrix products and attention, by row of `activity.gpu`; those of an optimizer are none."""
    names, gpu = timeline.activity.names, timeline.activity.gpu
    codes = [code for code in present(gpu.name) if family_of(names[code]) in _MODEL_FAMILIES]
    ops = timeline.activity.ops
    steps = timeline.activity.named(ops, is_optimizer) & ops.annotation
    optimizer = Intervals.of(ops.start[steps], ops.end[steps]).holds(timeline.launches.time)
    return timeline.is_compute & rows_with(gpu.name, codes, len(names)) & ~optimizer


def launched_elsewhere(timeline: Timeline) -> npt.NDArray[np.bool_]:
    """Work that another thread than the training loop's launched: autograd runs backward there."""
    track, activity = timeline.window.track, timeline.activity
    if track == NONE:
        return np.zeros(len(activity.gpu), dtype=bool)
    loop = activity.tracks[track]
    own = [code for code, one in enumerate(activity.tracks) if one == loop]
    launched: np.ndarray = timeline.launches.track != NONE
    return launched & ~rows_with(timeline.launches.track, own, len(activity.tracks))


def _schedule(timeline: Timeline, step: Step, stage: int | None, stages: int | None) -> Schedule:
    """Without spans, from sends, of which an edge stage has one a micro-batch.

    A stage in between sends twice for each micro-batch. With interleaving a stage sends twice more
    for each further chunk; how many chunks there are tells the command line, or the data loader of
    an edge stage, which is asked once a micro-batch.
    """
    activity = timeline.activity
    ops = activity.ops
    sends = [code for code, one in enumerate(activity.collectives) if _is_activation_sent(one)]
    inside = (ops.start >= step.start) & (ops.start < step.end)
    count = int((rows_with(ops.collective, sends, len(activity.collectives)) & inside).sum())
    if not count or stage is None or stages is None:
        return Schedule(None, None)
    in_between = 0 < stage < stages - 1
    chunks = virtual_stages(settings(activity.metadata.own), stages)
    if chunks is not None:
        sends_each = 2 * chunks - (0 if in_between else 1)
        if not count % sends_each:
            return Schedule(count // sends_each, chunks)
    if in_between:
        return Schedule(count // 2, None)
    asked = int((activity.named(ops, is_loader) & inside).sum())
    if not 0 < asked < count:
        return Schedule(count, 1 if asked == count else None)
    return Schedule(asked, (count + asked) // (2 * asked))


def _is_activation_sent(collective: Collective) -> bool:
    """Whether it is a send of the schedule's; one of a tensor's shape goes before if it varies."""
    if dimension_of(collective.group_description) != "pp" or canonical(collective.name) != "send":
        return False
    is_shape = (collective.dtype or "").lower() == "long"
    return not (is_shape and (collective.in_nelems or 0) <= _MOST_DIMENSIONS)


def _forwards(timeline: Timeline, step: Step) -> list[MicrobatchSpan]:
    ops, rows = timeline.activity.ops, timeline.phase_spans
    rows = rows[(ops.start[rows] >= step.start) & (ops.start[rows] < step.end)]
    spans = [microbatch_span(timeline.activity.names[int(ops.name[row])]) for row in rows.tolist()]
    return [span for span in spans if span is not None and span.direction == FORWARD]


def _spanned(forwards: list[MicrobatchSpan]) -> Schedule | None:
    """As spans tell it; None where they do not."""
    if not forwards or any(span.number is None for span in forwards):
        return None
    return Schedule(len({span.number for span in forwards}), len({span.chunk for span in forwards}))
