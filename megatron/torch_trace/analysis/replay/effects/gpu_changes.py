# SPDX-License-Identifier: Apache-2.0
"""Changes of what the GPU does, and of what waits for it."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from megatron.torch_trace.analysis.host.idle import TINY_NS
from megatron.torch_trace.analysis.replay.change import (
    ALL,
    Change,
    CommunicationScaled,
    KernelsScaled,
    ModuleScaled,
    TinyKernelsScaled,
    WithoutBarriers,
)
from megatron.torch_trace.analysis.replay.effects import cpu_segments
from megatron.torch_trace.analysis.replay.effects.adjustment import Adjustment, scaled, segments_of
from megatron.torch_trace.analysis.replay.effects.cpu_changes import scale_launches
from megatron.torch_trace.analysis.replay.effects.module_ranges import module_rows
from megatron.torch_trace.analysis.replay.kernels.graph import (
    ALONE,
    TRANSFER,
    Bools,
)
from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.kernel_names import short_name
from megatron.torch_trace.columns.intervals import Ints
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.selection import listed
from megatron.torch_trace.format.integer_arrays import distinct


def communication_ends(found: KernelGraph, dimension: str) -> Bools:
    """Which nodes are ends of communication of a dimension."""
    nodes = np.zeros(len(found.graph.nodes), dtype=bool)
    for rank, calls in zip(found.ranks, found.calls, strict=True):
        wanted = [n for n, k in enumerate(calls.kinds) if dimension in (ALL, k.dimension)]
        node = np.full(len(rank.timeline.activity.gpu), NONE, dtype=np.int64)
        node[rank.rows] = rank.ends
        ends = node[calls.rows[np.isin(calls.kind, wanted)]]
        nodes[ends[ends != NONE]] = True
    return nodes


def ends_of(found: KernelGraph, change: Change, dimension: str) -> Bools:
    """Which nodes are ends of communication of a dimension.

    Raises:
        UsageError: none is.
    """
    ends = communication_ends(found, dimension)
    if not ends.any():
        there = sorted({kind.dimension for calls in found.calls for kind in calls.kinds})
        raise UsageError(
            f"{change.text}: there is no communication of {dimension} in these traces; there is "
            f"{listed(there)}."
        )
    return ends


def communication(found: KernelGraph, result: Adjustment, change: CommunicationScaled) -> None:
    """Transfers of a dimension take another time."""
    edges = found.graph.edges
    goal = ends_of(found, change, change.dimension)[edges.target]
    transfers = np.flatnonzero(goal & (edges.kind == TRANSFER))
    nodes = distinct(edges.source[transfers])
    result.duration[nodes] = scaled(result.duration[nodes], change.factor)
    alone = np.flatnonzero(goal & (edges.kind == ALONE))
    for lag in (result.lag, result.usual):
        transfer = transfer_of(found, alone)
        lag[alone] -= scaled(transfer, 1 - change.factor)


def transfer_of(found: KernelGraph, edges: Ints) -> Ints:
    """Of communication joined with nobody, what is transfer: the best of its kind, by size."""
    target = found.graph.edges.target[edges]
    took = found.graph.edges.lag[edges]
    result = np.zeros(len(edges), dtype=np.int64)
    for rank, calls in zip(found.ranks, found.calls, strict=True):
        node = np.full(len(found.graph.nodes), NONE, dtype=np.int64)
        at = np.full(len(rank.timeline.activity.gpu) + 1, NONE, dtype=np.int64)
        at[calls.rows] = np.arange(len(calls.rows))
        joined = rank.ends != NONE
        node[rank.ends[joined]] = at[rank.rows[joined]]
        call = node[target]
        mine = np.flatnonzero(call != NONE)
        if not len(mine):
            continue
        kind, size = calls.kind[call[mine]], np.maximum(calls.bytes[call[mine]], 0)
        shortest = np.full(len(calls.kinds), 1 << 62)
        np.minimum.at(shortest, kind, took[mine])
        # Of two sizes the larger takes as much longer, at the best rate that its kind reached.
        rate = np.full(len(calls.kinds), np.inf)
        np.minimum.at(rate, kind, took[mine] / np.maximum(size, 1))
        least = np.where(size > 0, size * rate[kind], shortest[kind])
        result[mine] = np.minimum(took[mine], np.maximum(least, shortest[kind]))
    return result


def scale_work(found: KernelGraph, result: Adjustment, mine: list[Bools], factor: float) -> None:
    """Scale work of the GPU; of communication the transfer.

    Args:
        mine: for each rank, which of its rows.
    """
    edges = found.graph.edges
    goals = np.zeros(len(found.graph.nodes), dtype=bool)
    for rank, chosen in zip(found.ranks, mine, strict=True):
        own = chosen & (rank.ends == NONE)
        nodes = rank.starts[own]
        result.duration[nodes] = scaled(result.duration[nodes], factor)
        goals[rank.ends[chosen & (rank.ends != NONE)]] = True
    nodes = distinct(edges.source[goals[edges.target] & (edges.kind == TRANSFER)])
    result.duration[nodes] = scaled(result.duration[nodes], factor)
    alone = np.flatnonzero(goals[edges.target] & (edges.kind == ALONE))
    transfer = scaled(transfer_of(found, alone), 1 - factor)
    result.lag[alone] -= transfer
    result.usual[alone] -= transfer


def rows_named(found: KernelGraph, wanted: Callable[[str], bool]) -> list[Bools]:
    result = []
    for rank in found.ranks:
        activity = rank.timeline.activity
        result.append(activity.named(activity.gpu, wanted)[rank.rows])
    return result


def kernels(found: KernelGraph, result: Adjustment, change: KernelsScaled) -> None:
    """Kernels whose names a pattern finds take another time."""
    pattern = re.compile(change.pattern, re.IGNORECASE)
    mine = rows_named(found, lambda name: _finds(pattern, name))
    if not any(rows.any() for rows in mine):
        raise UsageError(
            f"{change.text}: no kernel in these traces has a name that {change.pattern} finds; "
            "`torch-trace analyze` shows the names."
        )
    scale_work(found, result, mine, change.factor)


def _finds(pattern: re.Pattern[str], name: str) -> bool:
    return any(pattern.search(one) is not None for one in (name, short_name(name)))


def tiny_kernels(found: KernelGraph, result: Adjustment, change: TinyKernelsScaled) -> None:
    """Short compute kernels take another time, and so do the calls that launch nothing else."""
    mine, points = [], []
    for rank in found.ranks:
        timeline = rank.timeline
        gpu = timeline.activity.gpu
        short = (gpu.end - gpu.start)[rank.rows] < TINY_NS
        tiny = timeline.is_compute[rank.rows] & short
        call = timeline.launches.call[rank.rows]
        others = distinct(call[~tiny])
        own = np.setdiff1d(call[tiny], others)
        points.append(np.isin(rank.points.call, own[own != NONE]))
        mine.append(tiny)
    if not any(rows.any() for rows in mine):
        raise UsageError(f"{change.text}: no kernel in these traces is shorter than 5 us.")
    scale_work(found, result, mine, change.factor)
    scale_launches(found, result, points, change.factor)


def without_barriers(found: KernelGraph, result: Adjustment, change: WithoutBarriers) -> None:
    """A barrier ends where it begins, whoever else is there."""
    nodes, edges = found.graph.nodes, found.graph.edges
    start = np.full(len(nodes), NONE, dtype=np.int64)
    for rank, calls in zip(found.ranks, found.calls, strict=True):
        barriers = [n for n, kind in enumerate(calls.kinds) if kind.collective == "barrier"]
        rows = calls.rows[np.isin(calls.kind, barriers)]
        mine = np.isin(rank.rows, rows) & (rank.ends != NONE)
        start[rank.ends[mine]] = rank.starts[mine]
    ended = start[edges.target] != NONE
    freed = np.flatnonzero(ended & np.isin(edges.kind, (TRANSFER, ALONE)))
    if not len(freed):
        raise UsageError(f"{change.text}: there are no barriers in these traces.")
    result.source[freed] = start[edges.target[freed]]
    result.lag[freed] = result.usual[freed] = 0
    result.carries[freed] = False
    result.rewired = True


def module(found: KernelGraph, result: Adjustment, change: ModuleScaled) -> None:
    """What a module does on the CPU and the GPU takes another time."""
    ranges = [module_rows(rank, change.module) for rank in found.ranks]
    if not any(one.work.any() for one in ranges):
        raise UsageError(
            f"{change.text}: no module in these traces is called {change.module}; "
            "--torch-profile-spans modules records them."
        )
    for rank, one in zip(found.ranks, ranges, strict=True):
        here = segments_of(rank)
        for rows, chosen in one.ranges:
            parts = cpu_segments.parts_in(rank, result.duration[here], rows, chosen)
            result.duration[here] -= scaled(parts, 1 - change.factor)
    scale_work(found, result, [one.work for one in ranges], change.factor)
