# SPDX-License-Identifier: Apache-2.0
"""From recorded ranks to the times of all passes: the mean over the ranks of a stage."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from megatron.torch_trace.analysis.replay.answers import UnreplayableError
from megatron.torch_trace.analysis.replay.spans import from_spans, from_transfers
from megatron.torch_trace.analysis.replay.spans.from_transfers import Measured, transfers_of
from megatron.torch_trace.analysis.replay.spans.orders import Shape
from megatron.torch_trace.analysis.replay.spans.passes import Passes, Times
from megatron.torch_trace.analysis.replay.spans.recorded_steps import (
    RECORD_SPANS,
    Rank,
    Recording,
)
from megatron.torch_trace.analysis.timeline.command_line import has

_TRANSFER = re.compile(r"(forward|backward)-(send|recv)(-(forward|backward)-(send|recv))?")
"""Timers of Megatron around sends and receives."""


def passes_of(recording: Recording) -> Passes:
    """The times of all passes.

    Raises:
        UnreplayableError: the traces do not tell them.
    """
    shape = recording.shape
    is_blocking = shape.stages > 1 and (
        shape.chunks == 1
        or any(
            has(one.result.settings, "--no-overlap-p2p-communication") for one in recording.ranks
        )
    )
    lanes = [(step, copy) for step in recording.steps for copy in recording.copies]
    places = recording.by_place()
    measured = {
        (step, copy, stage): _stage(shape, places[copy, stage], step, is_blocking)
        for step, copy in lanes
        for stage in range(shape.stages)
    }
    size = (len(lanes), shape.stages)
    cpu = np.zeros((*size, 2, shape.chunks, shape.microbatches))
    gpu, head = np.zeros_like(cpu), np.zeros(size)
    tail = np.full(len(recording.steps), np.inf)
    for lane, (step, copy) in enumerate(lanes):
        for stage in range(shape.stages):
            found = measured[step, copy, stage] or _mean(
                [measured[step, other, stage] for other in recording.copies]
            )
            if found is None:
                raise UnreplayableError(
                    f"the passes of pipeline stage {stage} in step {step} are unknown; "
                    f"{RECORD_SPANS}."
                )
            cpu[lane, stage], gpu[lane, stage] = found.cpu, found.gpu
            head[lane, stage] = found.head
            at = recording.steps.index(step)
            tail[at] = min(tail[at], found.tail)
    return Passes(
        shape=shape,
        cpu=cpu,
        gpu=gpu,
        head=head,
        tail=np.maximum(tail, 0.0),
        step_of=np.array([recording.steps.index(step) for step, _ in lanes], dtype=np.int64),
        recorded=_recorded(recording),
        transfer=_transfer(recording),
        is_blocking=is_blocking,
        ranks=tuple(
            tuple(
                tuple(one.result.rank for one in places[copy, stage])
                for stage in range(shape.stages)
            )
            for _, copy in lanes
        ),
        layers=recording.layers,
        sending=_sending(recording),
    )


def _stage(shape: Shape, ranks: Sequence[Rank], step: int, is_blocking: bool) -> Measured | None:
    """Never the longest of each part: that would be a rank which there is not."""
    return _mean([_rank(shape, one, step, is_blocking) for one in ranks])


def _rank(shape: Shape, rank: Rank, step: int, is_blocking: bool) -> Measured | None:
    if is_blocking:
        found = from_transfers.measure(shape, rank, step)
        if found is not None:
            return found
    return from_spans.measure(shape, rank, step)


def _mean(found: Sequence[Measured | None]) -> Measured | None:
    known = [one for one in found if one is not None]
    if not known:
        return None
    return Measured(
        np.mean([one.cpu for one in known], axis=0),
        np.mean([one.gpu for one in known], axis=0),
        float(np.mean([one.head for one in known])),
        min(one.tail for one in known),
    )


def _recorded(recording: Recording) -> Times:
    return np.array(
        [np.mean([_length(one, step) for one in recording.ranks]) for step in recording.steps],
        dtype=np.float64,
    )


def _length(rank: Rank, number: int) -> int:
    step = rank.step(number)
    return step.end_ns - step.start_ns


def _transfer(recording: Recording) -> float:
    """The shortest: a longer one waited for the other stage."""
    shortest = []
    for rank in recording.ranks:
        for step in recording.steps:
            found = transfers_of(rank, step)
            if len(found.start):
                shortest.append(int((found.end - found.start).min()))
    return float(np.median(shortest)) if shortest else 0.0


def _sending(recording: Recording) -> float:
    """The CPU's time of a send or receive: where it takes least, nothing was waited for."""
    means = [
        row.time_ns / row.calls
        for rank in recording.ranks
        for row in rank.result.phases
        if row.calls and _TRANSFER.fullmatch(row.phase)
    ]
    return min(means, default=0.0)
