# SPDX-License-Identifier: Apache-2.0
"""Changes of what the CPU does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from megatron.torch_trace.analysis.host.data_loader import is_loader
from megatron.torch_trace.analysis.replay.change import (
    Change,
    CollectionsScaled,
    DataLoaderScaled,
    LaunchScaled,
    OperatorsScaled,
    RankAsMedian,
    RecordingCost,
    WithoutSynchronisation,
)
from megatron.torch_trace.analysis.replay.effects import cpu_segments
from megatron.torch_trace.analysis.replay.effects.adjustment import Adjustment, scaled, segments_of
from megatron.torch_trace.analysis.replay.kernels.graph import LAUNCH, WAIT, Bools
from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph
from megatron.torch_trace.analysis.replay.kernels.peer_segments import FarLonger, median_of
from megatron.torch_trace.analysis.timeline.activity import NONE, Activity
from megatron.torch_trace.analysis.timeline.span_names import is_collection
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.selection import listed

MOST_VARIANTS = 4
"""Of so many other ranks each is tried alone: how much they differ is the error."""

_LEAST_LATENCY_NS = 1_000
"""From a launch to its work it takes at least as long, however cheap the call."""


def rank_as_median(found: KernelGraph, result: Adjustment, change: RankAsMedian) -> None:
    """The CPU segments of a rank as the median of the ranks of its pipeline stage has them.

    Where some of its segments take far longer than on any peer, these alone: the rest is luck.
    """
    position, others = peers_of(found, result, change, change.rank)
    here = segments_of(found.ranks[position])
    own = result.duration[here]
    columns = found.peers.columns(position, others, result.duration)
    median, far = median_of(columns, own), FarLonger.of(own, columns)
    replaced = far.which if far.which.any() else np.ones(len(own), dtype=bool)
    if far.which.any():
        at = np.flatnonzero(far.which)
        result.luck_ns += far.luck * math.sqrt(len(at))
        result.excess[change.rank] = ints(at + here.start), ints((own - median)[at])
    result.duration[here] = np.where(replaced, median, own)
    for column in columns[:MOST_VARIANTS]:
        variant = result.duration.copy()
        variant[here] = np.where(replaced & (column != NONE), column, own)
        result.may_be(variant)


def peers_of(
    found: KernelGraph, result: Adjustment, change: Change, number: int
) -> tuple[int, list[int]]:
    """Position of a rank, and those of the ranks that do the same work.

    Raises:
        UsageError: there is no such rank, or it is alone.
    """
    position = next((at for at, one in enumerate(found.ranks) if one.rank == number), None)
    if position is None:
        there = listed([one.rank for one in found.ranks])
        raise UsageError(f"{change.text}: there is no trace of rank {number}; there are {there}.")
    others = found.peers.peers(position, result.mended) or found.peers.peers(position)
    if not others:
        raise UsageError(
            f"{change.text}: no other rank does the same work as rank {number}; name the "
            "traces of ranks of the same pipeline stage too."
        )
    return position, others


def launch(found: KernelGraph, result: Adjustment, change: LaunchScaled) -> None:
    """Calls that launch take another time, and their work begins as much earlier or later."""
    scale_launches(found, result, [np.ones(len(one.points), dtype=bool) for one in found.ranks],
                   change.factor)  # fmt: skip


def scale_launches(
    found: KernelGraph, result: Adjustment, chosen: Sequence[Bools], factor: float
) -> None:
    """Scale calls that launch.

    Args:
        chosen: for each rank, which of its points.
    """
    edges, nodes = found.graph.edges, found.graph.nodes
    called = np.zeros(len(nodes), dtype=np.int64)
    for rank, mine in zip(found.ranks, chosen, strict=True):
        here = segments_of(rank)
        parts = np.where(mine, cpu_segments.launch_parts(rank, result.duration[here]), 0)
        called[here] = parts
        result.duration[here] -= scaled(ints(parts), 1 - factor)
    launches = np.flatnonzero(edges.kind == LAUNCH)
    saved = scaled(called[edges.source[launches]], 1 - factor)
    for lag in (result.lag, result.usual):
        least = np.minimum(lag[launches], _LEAST_LATENCY_NS)
        lag[launches] = np.maximum(lag[launches] - saved, least)


def data_loader(found: KernelGraph, result: Adjustment, change: DataLoaderScaled) -> None:
    """The data loader takes another time."""
    waits = _in_ranges(found, result, lambda activity: activity.named(activity.ops, is_loader))
    if waits is None:
        raise UsageError(
            f"{change.text}: no data loader is in these traces; torch records its own, and another "
            "one is in no event."
        )
    _scale_waits(result, waits, change)


def garbage_collections(found: KernelGraph, result: Adjustment, change: CollectionsScaled) -> None:
    """Python's garbage collector takes another time; the profiler does not slow it."""
    waits = _in_ranges(found, result, _collections)
    if waits is None:
        raise UsageError(
            f"{change.text}: no garbage collection is in these traces; --torch-profile records a "
            "span of each one of generation 1 and above (Python 3.12 and newer)."
        )
    _scale_waits(result, waits, change)


def _collections(activity: Activity) -> Bools:
    found: Bools = activity.named(activity.ops, is_collection) & activity.ops.annotation
    return found


def _in_ranges(
    found: KernelGraph, result: Adjustment, chosen: Callable[[Activity], Bools]
) -> Ints | None:
    """How much of each node lies in ranges of its own thread, ns; None if there are no such ranges.

    Args:
        chosen: which rows of `activity.ops` count.
    """
    there = False
    inside = np.zeros(len(result.duration), dtype=np.int64)
    for rank in found.ranks:
        activity = rank.timeline.activity
        mine = chosen(activity)
        there |= bool(mine.any())
        here = segments_of(rank)
        inside[here] = cpu_segments.parts_in(rank, result.duration[here], activity.ops, mine)
    return ints(inside) if there else None


def _scale_waits(
    result: Adjustment, waits: Ints, change: DataLoaderScaled | CollectionsScaled
) -> None:
    """Parts of nodes take another time, ns: no luck of a CPU, but what the recording tells."""
    taken = scaled(waits, 1 - change.factor)
    result.duration -= taken
    still = ints(waits - taken)
    result.still = still if result.still is None else ints(result.still + still)
    result.waits.setdefault(change.flag, waits)


def operators(found: KernelGraph, result: Adjustment, change: OperatorsScaled) -> None:
    """Operators take another time, calls that launch aside."""
    for rank in found.ranks:
        here = segments_of(rank)
        parts = cpu_segments.operator_parts(rank, result.duration[here])
        result.duration[here] -= scaled(parts, 1 - change.factor)


def recording_cost(found: KernelGraph, result: Adjustment, change: RecordingCost) -> None:
    """Every recorded operator takes so much less; none of them less than nothing."""
    for rank in found.ranks:
        here = segments_of(rank)
        count, inside = cpu_segments.recorded_operators(rank, result.duration[here])
        cost = scaled(count, change.ns)
        result.duration[here] -= np.minimum(cost, inside)


def without_waits(found: KernelGraph, result: Adjustment, change: WithoutSynchronisation) -> None:
    """No call waits for the GPU."""
    result.without(found.graph.edges.kind == WAIT)
