# SPDX-License-Identifier: Apache-2.0
"""Copies that take another time, or that nobody waits for any more."""

from __future__ import annotations

import numpy as np

from megatron.torch_trace.analysis.host.blocking_copies import blocking_copies
from megatron.torch_trace.analysis.replay.change import ALL, CopiesScaled
from megatron.torch_trace.analysis.replay.effects.adjustment import Adjustment, scaled
from megatron.torch_trace.analysis.replay.effects.gpu_changes import rows_named, scale_work
from megatron.torch_trace.analysis.replay.kernels.graph import WAIT
from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph
from megatron.torch_trace.analysis.replay.kernels.rank_graph import RankGraph
from megatron.torch_trace.analysis.replay.kernels.thread_points import LAUNCH, RETURN
from megatron.torch_trace.analysis.replay.kernels.thread_points import WAIT as WAITS
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.errors import UsageError

_USUAL_CALL_NS = 10_000
"""Of a call that copies pinned memory: it launches, and does no more."""


def copies(found: KernelGraph, result: Adjustment, change: CopiesScaled) -> None:
    """Copies of a kind take another time; at 0 no call waits for them, nor makes them wait."""
    mine = rows_named(found, lambda name: _is_copy(name, change.kind))
    if not any(rows.any() for rows in mine):
        raise UsageError(f"{change.text}: there are no copies of this kind in these traces.")
    scale_work(found, result, mine, change.factor)
    edges = found.graph.edges
    copies = np.zeros(len(found.graph.nodes), dtype=bool)
    for rank, chosen in zip(found.ranks, mine, strict=True):
        copies[rank.starts[chosen]] = True
    holding = found.ranks if change.kind in ("pageable", ALL) else ()
    if change.factor:
        for rank in holding:
            _hold(rank, result, change.factor)
    else:
        awaiting = np.zeros(len(found.graph.nodes), dtype=bool)
        for rank in holding:
            awaiting[_let_go(rank, result)] = True
        freed = copies[edges.source] | awaiting[edges.target]
        result.without(freed & (edges.kind == WAIT))


def _hold(rank: RankGraph, result: Adjustment, factor: float) -> None:
    """Calls that return when pageable memory is copied do so as much earlier or later."""
    points, calls = rank.points, rank.timeline.activity.calls
    copying, begun = blocking_copies(rank.timeline)
    launches = points.at(LAUNCH)
    launches = launches[np.isin(points.call[launches], copying)]
    call = points.call[launches]
    held = ints(calls.end[call] - begun[np.searchsorted(copying, call)])
    at = rank.first_point + launches
    result.duration[at] = np.maximum(result.duration[at] - scaled(held, 1 - factor), 0)


def _let_go(rank: RankGraph, result: Adjustment) -> Ints:
    """Calls that wait until pageable memory is copied do not; the nodes where they went on."""
    points, calls = rank.points, rank.timeline.activity.calls
    mine = np.isin(points.call, blocking_copies(rank.timeline, from_host=True)[0])
    waits, launches, returns = (
        np.flatnonzero(mine & (points.role == role)) for role in (WAITS, LAUNCH, RETURN)
    )
    first = rank.first_point
    result.duration[first + waits] = np.minimum(result.duration[first + waits], _USUAL_CALL_NS)
    rest = calls.end[points.call[launches]] - points.time[launches]
    shorter = np.maximum(rest - _USUAL_CALL_NS, 0)
    at = first + launches
    result.duration[at] = np.maximum(result.duration[at] - shorter, 0)
    return ints(first + returns)


def _is_copy(name: str, kind: str) -> bool:
    folded = name.lower()
    if not folded.startswith(("memcpy", "copy", "dma")):
        return False
    if kind == "device":
        return "pageable" not in folded and "pinned" not in folded
    return kind in (ALL,) or kind in folded
