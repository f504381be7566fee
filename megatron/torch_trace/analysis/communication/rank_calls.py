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
from megatron.torch_trace.analysis.timeline.activity import NONE, Activity
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
    """Rows of `calls` in the order of launch, which is that of `rank_calls`.

    Calls of the CPU are numbered in their order. So work whose launch is not in the trace, such as
    what had queued up before the trace began, was launched before all that has a higher number.
    """
    gpu, times = timeline.activity.gpu, timeline.launches.time
    start, number = gpu.start[calls.rows], gpu.correlation[calls.rows]
    latest = np.where(times == NONE, gpu.start, times)
    numbered = np.flatnonzero(gpu.correlation > 0)
    numbered = numbered[np.argsort(gpu.correlation[numbered], kind="stable")]
    # The first time that is known of these numbers or higher ones.
    bound = np.minimum.accumulate(latest[numbered][::-1])[::-1]
    at = np.searchsorted(gpu.correlation[numbered], number)
    launched = latest[calls.rows]
    missing = (times[calls.rows] == NONE) & (number > 0)
    launched[missing] = bound[at[missing]]
    return ints(np.lexsort((start, number, launched)))
