# SPDX-License-Identifier: Apache-2.0
"""Forwards and backwards of a stage without spans, told by threads and by sends and receives.

The training loop launches forwards and autograd's thread launches backwards, and the loop waits for
that thread, so launches of both are in the order of the program:

    loop       F F   recv   F           recv
    autograd                      B           B
    passes     forward      forward, backward, backward

Two passes of one direction have a send or a receive between them. In 1F1B without interleaving the
order of directions tells the micro-batches; in any other order they stay without numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.communication.collectives import CollectiveCalls, canonical
from megatron.torch_trace.analysis.communication.dimensions import dimension_of
from megatron.torch_trace.analysis.schedule.pipeline import (
    POINT_TO_POINT,
    PipelineStep,
    launched_elsewhere,
    model_work,
    sends_and_receives,
)
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.code_columns import rows_with
from megatron.torch_trace.analysis.timeline.moment import Moment
from megatron.torch_trace.analysis.timeline.span_names import BACKWARD, FORWARD
from megatron.torch_trace.analysis.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class PassRow:
    """A forward or a backward of one micro-batch on one stage, of a trace without spans of it.

    Args:
        step: number of the step.
        direction: forward or backward.
        number: of the micro-batch; None where the order of passes is not that of 1F1B.
        on_gpu: from the first to the last GPU work that computes.
        gpu_ns: sum of GPU work launched meanwhile, without sends and receives of the pipeline.
    """

    step: int
    direction: str
    number: int | None
    on_gpu: Moment
    gpu_ns: int


def pass_rows(
    timeline: Timeline, calls: CollectiveCalls, steps: Sequence[PipelineStep]
) -> tuple[PassRow, ...]:
    """The passes of each step in their order; empty where spans tell of micro-batches.

    Times in ns. Source: docs/computed.md, "Pipeline".
    """
    if len(timeline.phase_spans) or timeline.window.track == NONE or not steps:
        return ()
    launched = timeline.launches.time != NONE
    work = timeline.in_window & launched & ~sends_and_receives(timeline, calls)
    backward, model = launched_elsewhere(timeline), model_work(timeline)
    at = {step.number: n for n, step in enumerate(timeline.window.steps)}
    cuts = _asked_for(timeline, calls)
    found: list[PassRow] = []
    for one in steps:
        rows = np.flatnonzero(work & (timeline.step_of == at[one.step]))
        rows = rows[np.argsort(timeline.launches.time[rows], kind="stable")]
        before = np.searchsorted(cuts, timeline.launches.time[rows])
        found += _numbered(one, _passes(timeline, one.step, rows, before, backward, model))
    return tuple(found)


def _asked_for(timeline: Timeline, calls: CollectiveCalls) -> npt.NDArray[np.int64]:
    """When the CPU asked for sends and receives, in order; by launches where operators lack."""
    activity = timeline.activity
    codes = [
        code
        for code, one in enumerate(activity.collectives)
        if dimension_of(one.group_description) == "pp" and canonical(one.name) in POINT_TO_POINT
    ]
    ops = activity.ops
    of = rows_with(ops.collective, codes, len(activity.collectives))
    launched = timeline.launches.time[sends_and_receives(timeline, calls)]
    return np.sort(np.concatenate([ops.start[of], launched[launched != NONE]]))


def _passes(
    timeline: Timeline,
    step: int,
    rows: npt.NDArray[np.int64],
    before: npt.NDArray[np.int64],
    backward: npt.NDArray[np.bool_],
    model: npt.NDArray[np.bool_],
) -> list[PassRow]:
    """Stretches of launches in one direction that no send or receive parts.

    One without a matrix product is no pass, but a scaled loss, a sum of gradients, an optimizer.
    """
    keys = zip(backward[rows].tolist(), before.tolist(), rows.tolist(), strict=True)
    stretches = [
        (key, [row for *_, row in of]) for key, of in groupby(keys, key=lambda one: one[:2])
    ]
    whole: list[tuple[tuple[bool, int], list[int]]] = []
    for key, of in stretches:
        if whole and whole[-1][0] == key:  # it was only interrupted
            whole[-1][1].extend(of)
        elif model[of].any():
            whole.append((key, of))
    gpu = timeline.activity.gpu
    found = []
    for (is_backward, _), of in whole:
        computing = [row for row in of if timeline.is_compute[row]]
        start, end = int(gpu.start[computing].min()), int(gpu.end[computing].max())
        work = int(timeline.clipped[of].sum())
        direction = BACKWARD if is_backward else FORWARD
        found.append(PassRow(step, direction, None, Moment(start, end - start), work))
    while found and found[-1].direction == FORWARD:
        found.pop()  # an optimizer may have matrix products, too
    return found


def _numbered(step: PipelineStep, passes: list[PassRow]) -> list[PassRow]:
    """With the numbers of micro-batches where the order is that of 1F1B.

    No interleaved schedule has that order: it begins with more forwards.
    """
    forwards = sum(one.direction == FORWARD for one in passes)
    expected = (step.microbatches or forwards) * (step.chunks or 1)
    if step.stage is None or step.stages is None or forwards != expected:
        return passes
    warmup = min(step.stages - step.stage - 1, forwards)
    order = [FORWARD] * warmup + [FORWARD, BACKWARD] * (forwards - warmup) + [BACKWARD] * warmup
    if [one.direction for one in passes] != order:
        return passes
    count = {FORWARD: 0, BACKWARD: 0}
    found = []
    for one in passes:
        found.append(replace(one, number=count[one.direction]))
        count[one.direction] += 1
    return found
