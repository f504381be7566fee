# SPDX-License-Identifier: Apache-2.0
"""Times of passes from the spans of micro-batches, where the CPU does not wait at transfers."""

from __future__ import annotations

import numpy as np

from megatron.torch_trace.analysis.replay.spans.from_transfers import Measured
from megatron.torch_trace.analysis.replay.spans.orders import Shape, order_of
from megatron.torch_trace.analysis.replay.spans.passes import BACKWARD, FORWARD, Times
from megatron.torch_trace.analysis.replay.spans.recorded_steps import Rank
from megatron.torch_trace.analysis.schedule.microbatches import MicrobatchRow
from megatron.torch_trace.analysis.timeline.moment import Moment

_WHOLE = "forward-backward"
_PASSES = ("forward micro-batch", "backward micro-batch")
_LEAST_KNOWN = 0.5


def measure(shape: Shape, rank: Rank, number: int) -> Measured | None:
    """Times of a rank's passes in a step; None where fewer than half of them have spans."""
    rows = [row for row in rank.result.microbatches if row.step == number]
    chunks = {row.chunk for row in rank.result.microbatches if row.chunk is not None}
    chunk_of = {chunk: index for index, chunk in enumerate(sorted(chunks))}
    cpu = np.full((2, shape.chunks, shape.microbatches), np.nan)
    gpu = np.full_like(cpu, np.nan)
    ends: list[int] = []
    starts: dict[tuple[int, int], Moment] = {}
    for row in rows:
        chunk = chunk_of.get(row.chunk, 0) if row.chunk is not None else 0
        if row.number is None or row.number >= shape.microbatches or chunk >= shape.chunks:
            continue
        for direction, spent, work, on_gpu in _directions(row):
            if spent is None:
                continue
            at = (direction, chunk, row.number)
            cpu[at] = spent
            # Work of several streams may add up to more than the time in which it ran.
            gpu[at] = min(work or 0, on_gpu.duration_ns) if on_gpu else work or 0
            if on_gpu:
                ends.append(on_gpu.start_ns + on_gpu.duration_ns)
                if direction == FORWARD:
                    starts[chunk, row.number] = on_gpu
    if not ends or np.isnan(cpu).mean() > 1 - _LEAST_KNOWN:
        return None
    _fill(cpu)
    _fill(gpu)
    cpu += _between_passes(shape, rank)
    step = rank.step(number)
    first = order_of(shape, rank.stage)[0]
    moment = starts.get((first.chunk, first.microbatch))
    head = 0.0
    if moment is not None:
        # The pass ends on the GPU when the CPU has launched it, or began when it was launched.
        begun = moment.start_ns - step.start_ns
        until = begun + moment.duration_ns - float(cpu[FORWARD, first.chunk, first.microbatch])
        head = max(0.0, min(float(begun), until))
    return Measured(cpu, gpu, head, float(step.end_ns - max(ends)))


def _directions(
    row: MicrobatchRow,
) -> tuple[tuple[int, int | None, int | None, Moment | None], ...]:
    return (
        (FORWARD, row.forward_ns, row.forward_gpu_ns, row.forward_on_gpu),
        (BACKWARD, row.backward_ns, row.backward_gpu_ns, row.backward_on_gpu),
    )


def _fill(times: Times) -> None:
    """What is unknown becomes the mean of its direction and chunk, else of its direction."""
    if not np.isnan(times).any():
        return
    for direction in times:
        whole = float(np.nanmean(direction)) if not np.isnan(direction).all() else 0.0
        for chunk in direction:
            known = chunk[~np.isnan(chunk)]
            chunk[np.isnan(chunk)] = float(known.mean()) if len(known) else whole


def _between_passes(shape: Shape, rank: Rank) -> float:
    """The CPU's time between two passes: transfers are launched, tensors freed, ..."""
    phases = {row.phase: row.time_ns for row in rank.result.phases}
    if _WHOLE not in phases or not rank.result.steps:
        return 0.0
    inside = sum(phases.get(name, 0) for name in _PASSES)
    reductions = sum(time for name, time in phases.items() if "grads" in name.split("-"))
    passes = 2 * shape.chunks * shape.microbatches * len(rank.result.steps)
    return max(0.0, phases[_WHOLE] - inside - reductions) / passes
