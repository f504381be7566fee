# SPDX-License-Identifier: Apache-2.0
"""The collective calls of one rank, as other ranks need to see them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.communication.collectives import (
    CollectiveCalls,
    CollectiveKind,
    attribute,
    starts_and_ends,
)
from megatron.torch_trace.analysis.timeline.activity import Activity
from megatron.torch_trace.analysis.timeline.timeline import Timeline, timeline_of
from megatron.torch_trace.columns.intervals import Ints, ints


@dataclass(frozen=True, slots=True)
class RankCalls:
    """Collective calls of one rank, as other ranks need to see them, in the order of launch.

    Args:
        start, end: absolute, ns since the epoch where the trace tells it.
        kind: codes into `kinds`.
        kinds: what the codes mean.
        step: number of the step that launched it, -1 if unknown.
        bytes, elements, seq: see `collectives.Message`.

    All but the times may be narrower integers.
    """

    start: Ints
    end: Ints
    kind: Ints
    kinds: tuple[CollectiveKind, ...]
    step: Ints
    bytes: Ints
    elements: Ints
    seq: Ints


def calls_in(activity: Activity, *, workers: int = 1) -> RankCalls | None:
    """What `match` needs of one rank's trace; None if it holds neither steps nor GPU work."""
    timeline = timeline_of(activity, workers=workers)
    return None if timeline is None else rank_calls(timeline, attribute(timeline))


def rank_calls(timeline: Timeline, calls: CollectiveCalls) -> RankCalls:
    """What `match` needs of one rank, in the order of launch."""
    start, end = starts_and_ends(timeline, calls)
    base = timeline.activity.base_ns
    order = launch_order(timeline, calls)
    step = timeline.step_of[calls.rows]
    numbers = ints([*(s.number for s in timeline.window.steps), -1])
    return RankCalls(
        start=start[order] + base,
        end=end[order] + base,
        kind=calls.kind[order],
        kinds=calls.kinds,
        step=numbers[step[order]],
        bytes=calls.bytes[order],
        elements=calls.elements[order],
        seq=calls.seq[order],
    )


def launch_order(timeline: Timeline, calls: CollectiveCalls) -> Ints:
    """Rows of `calls` in the order of launch, which is that of `rank_calls`."""
    start = timeline.activity.gpu.start[calls.rows]
    launched = timeline.launches.time[calls.rows]
    return ints(np.lexsort((start, np.where(launched < 0, start, launched))))
