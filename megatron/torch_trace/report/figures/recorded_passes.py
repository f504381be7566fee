# SPDX-License-Identifier: Apache-2.0
"""Forwards and backwards of a stage, from spans where there are some, else as derived."""

from __future__ import annotations

from typing import NamedTuple

from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.analysis.schedule.microbatches import MicrobatchRow
from megatron.torch_trace.analysis.timeline.moment import Moment


class RecordedPass(NamedTuple):
    """One forward or backward; `number` is None where nothing tells the micro-batch."""

    step: int | None
    direction: str
    number: int | None
    chunk: int
    on_gpu: Moment
    gpu_ns: int | None


def recorded_passes(rank: RankResult) -> list[RecordedPass]:
    """All of a rank, of all steps; none where several models have a schedule each."""
    if len({row.model for row in rank.microbatches}) > 1:
        return []
    if rank.microbatches:
        return [one for row in rank.microbatches for one in _directions(row)]
    return [
        RecordedPass(row.step, row.direction, row.number, 0, row.on_gpu, row.gpu_ns)
        for row in rank.passes
    ]


def _directions(row: MicrobatchRow) -> list[RecordedPass]:
    both = (
        ("forward", row.forward_on_gpu, row.forward_gpu_ns),
        ("backward", row.backward_on_gpu, row.backward_gpu_ns),
    )
    return [
        RecordedPass(row.step, direction, row.number, row.chunk or 0, moment, work)
        for direction, moment, work in both
        if moment is not None
    ]
