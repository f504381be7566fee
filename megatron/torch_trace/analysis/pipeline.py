# SPDX-License-Identifier: Apache-2.0
"""The pipeline's bubble on one stage: waiting between its first and its last micro-batch.

    stage 0   F1 F2 .  .  B1 B2 |  optimizer      . is bubble: receive or send with no compute
    stage 1   .  F1 B1 F2 B2 .  |                 beside it, or nothing at all

In 1F1B with p stages and m micro-batches of equal cost the bubble is (p-1)/(m+p-1) of the time
between the first and the last micro-batch (Narayanan et al. 2021, "Efficient Large-Scale Language
Model Training on GPU Clusters Using Megatron-LM", section 2.2, as a share of the whole).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.activity import NONE
from megatron.torch_trace.analysis.codes import present, rows_with
from megatron.torch_trace.analysis.collectives import CollectiveCalls, canonical
from megatron.torch_trace.analysis.dimensions import dimension_of
from megatron.torch_trace.analysis.intervals import Intervals
from megatron.torch_trace.analysis.loader import is_loader
from megatron.torch_trace.analysis.names import family_of
from megatron.torch_trace.analysis.steps import Step
from megatron.torch_trace.analysis.timeline import Timeline

_POINT_TO_POINT = ("send", "recv", "send_recv")
_MODEL_FAMILIES = ("gemm", "attention")


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """One step of one stage, times in ns.

    Args:
        rank, step: where and when.
        stage, stages: position in the pipeline and its length; None if the trace does not tell.
        microbatches: counted from the schedule's sends and receives; None if they are not recorded.
        start_ns, end_ns: first to last micro-batch on the GPU: from the first receive or matrix
            product to the end of the last send or of the last work launched by the backward pass.
        compute_ns: compute in between.
        exposed_pipeline_ns: send/recv beside which nothing computes.
        idle_ns: no GPU work at all.
        bubble_ns: exposed_pipeline_ns + idle_ns.
        bubble_share: of end - start.
        ideal_share: (p-1)/(m+p-1), None if either is unknown.
    """

    rank: int
    step: int
    stage: int | None
    stages: int | None
    microbatches: int | None
    start_ns: int
    end_ns: int
    compute_ns: int
    exposed_pipeline_ns: int
    idle_ns: int
    bubble_ns: int
    bubble_share: float
    ideal_share: float | None


def pipeline_steps(
    timeline: Timeline, calls: CollectiveCalls, rank: int
) -> tuple[PipelineStep, ...]:
    """One entry a step; empty for a rank without pipeline communication."""
    mask = _sends_and_receives(timeline, calls)
    if not mask.any():
        return ()
    gpu = timeline.activity.gpu
    exposed, idle = _waiting(timeline, mask)
    stage, stages = _position(timeline)
    model = _model_work(timeline)
    backward = _launched_elsewhere(timeline)
    found = []
    for number, step in enumerate(timeline.window.steps):
        here = timeline.step_of == number
        begin = gpu.start[here & (mask | model)]
        finish = gpu.end[here & (mask | model | backward)]
        if not len(begin) or not (here & mask).any():
            continue
        start = max(int(begin.min()), timeline.window.start)
        end = min(int(finish.max()), timeline.window.end)
        count = _microbatches(timeline, step, stage, stages)
        found.append(
            _measure(timeline, exposed, idle, rank, step, (stage, stages, count), (start, end))
        )
    return tuple(found)


def pipeline_waiting(timeline: Timeline, calls: CollectiveCalls) -> Intervals:
    """When the stage waits, in the whole window: exposed send/recv, and no GPU work at all."""
    exposed, idle = _waiting(timeline, _sends_and_receives(timeline, calls))
    return exposed.union(idle)


def _sends_and_receives(timeline: Timeline, calls: CollectiveCalls) -> npt.NDArray[np.bool_]:
    kinds = [
        code
        for code, kind in enumerate(calls.kinds)
        if kind.dimension == "pp" and kind.collective in _POINT_TO_POINT
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
    schedule: tuple[int | None, int | None, int | None],
    bounds: tuple[int, int],
) -> PipelineStep:
    stage, stages, count = schedule
    start, end = bounds
    waiting = int(exposed.covered([start], [end])[0])
    nothing = int(idle.covered([start], [end])[0])
    return PipelineStep(
        rank=rank,
        step=step.number,
        stage=stage,
        stages=stages,
        microbatches=count,
        start_ns=start,
        end_ns=end,
        compute_ns=int(timeline.sets.compute.covered([start], [end])[0]),
        exposed_pipeline_ns=waiting,
        idle_ns=nothing,
        bubble_ns=waiting + nothing,
        bubble_share=(waiting + nothing) / (end - start) if end > start else 0.0,
        ideal_share=(stages - 1) / (count + stages - 1) if stages and count else None,
    )


def _position(timeline: Timeline) -> tuple[int | None, int | None]:
    metadata = timeline.activity.metadata
    stage = metadata.coordinates.get("pp")
    for group in metadata.process_groups:
        ranks = group["ranks"]
        if dimension_of(group.get("pg_desc")) == "pp" and metadata.rank in ranks:
            return ranks.index(metadata.rank) if stage is None else stage, len(ranks)
    return stage, None


def _model_work(timeline: Timeline) -> np.ndarray:
    names, gpu = timeline.activity.names, timeline.activity.gpu
    codes = [code for code in present(gpu.name) if family_of(names[code]) in _MODEL_FAMILIES]
    return timeline.is_compute & rows_with(gpu.name, codes, len(names))


def _launched_elsewhere(timeline: Timeline) -> np.ndarray:
    """Work that another thread than the training loop's launched: autograd runs backward there."""
    track, activity = timeline.window.track, timeline.activity
    if track == NONE:
        return np.zeros(len(activity.gpu), dtype=bool)
    loop = activity.tracks[track]
    own = [code for code, one in enumerate(activity.tracks) if one == loop]
    launched: np.ndarray = timeline.launches.track != NONE
    return (
        launched
        & ~rows_with(timeline.launches.track, own, len(activity.tracks))
        & timeline.is_compute
    )


def _microbatches(
    timeline: Timeline, step: Step, stage: int | None, stages: int | None
) -> int | None:
    """An edge stage sends once for each micro-batch, one in between sends twice.

    With interleaving a stage sends once more for each further chunk; the data loader, which is
    asked once a micro-batch, tells how many of the sends are that.
    """
    activity = timeline.activity
    ops = activity.ops
    sends = []
    for code, collective in enumerate(activity.collectives):
        pipeline = dimension_of(collective.group_description) == "pp"
        if pipeline and canonical(collective.name) == "send":
            sends.append(code)
    inside = (ops.start >= step.start) & (ops.start < step.end)
    count = int((rows_with(ops.collective, sends, len(activity.collectives)) & inside).sum())
    if not count or stage is None or stages is None:
        return None
    if 0 < stage < stages - 1:
        count //= 2
    asked = int((activity.named(ops, is_loader) & inside).sum())
    return asked if 0 < asked < count else count
