# SPDX-License-Identifier: Apache-2.0
"""Communication beside compute: nobody waits for it, but it is not free.

    recorded    [gemm][reduce-scatter][gemm]
    simulated   [gemm ][gemm ]                 each takes longer while data move
                 [reduce-scatter ]

NCCL's kernels take multiprocessors and memory bandwidth from compute beside them, and the hooks
that start communication early take CPU time.
"""

from __future__ import annotations

import numpy as np

from megatron.torch_trace.analysis.replay.change import Overlapped
from megatron.torch_trace.analysis.replay.effects import cpu_segments
from megatron.torch_trace.analysis.replay.effects.adjustment import Adjustment, scaled, segments_of
from megatron.torch_trace.analysis.replay.effects.gpu_changes import ends_of, transfer_of
from megatron.torch_trace.analysis.replay.kernels.graph import (
    ALONE,
    CONTENTION,
    KERNEL,
    STREAM,
    STREAM_WAIT,
    TRANSFER,
    Bools,
)
from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph
from megatron.torch_trace.analysis.replay.kernels.rank_graph import RankGraph
from megatron.torch_trace.columns.intervals import Intervals, Ints, ints

LONGER_COMPUTE = 0.36
"""Of a transfer: by so much compute beside it takes longer.

Megatron core 0.19.2, both overlap flags on 4 H200: 14.6 ms of transfers, compute 5.3 ms longer
(docs/benchmarks.md). From one pair of runs.
"""
MORE_OPERATORS = 0.06
"""Of the CPU's time in operators: so many more ran with the hooks of both flags, in that pair."""


def overlap(found: KernelGraph, result: Adjustment, change: Overlapped) -> None:
    """Compute that follows communication on its stream, or waits for it, does not.

    The error goes from overlap that costs nothing to one that costs twice as much and whose hooks
    are in the way.
    """
    ends = ends_of(found, change, change.dimension)
    exposed = [_exposed_ns(found, rank, ends) for rank in found.ranks]
    _free(found, result, ends)
    free, dear = result.duration.copy(), result.duration.copy()
    for rank, ns in zip(found.ranks, exposed, strict=True):
        rows = rank.starts[rank.timeline.is_compute[rank.rows]]
        total = int(result.duration[rows].sum())
        if total:
            more = LONGER_COMPUTE * ns / total
            dear[rows] = scaled(dear[rows], 1 + 2 * more)
            result.duration[rows] = scaled(result.duration[rows], 1 + more)
        here = segments_of(rank)
        hooks = cpu_segments.operator_parts(rank, free[here])
        dear[here] += scaled(hooks, MORE_OPERATORS)
    result.may_be(free)
    result.may_be(dear)


def _free(found: KernelGraph, result: Adjustment, ends: Bools) -> None:
    """Let compute no longer wait for communication."""
    edges, nodes = found.graph.edges, found.graph.nodes
    start = np.arange(len(nodes))
    computes = nodes.kind == KERNEL
    for rank in found.ranks:
        joined = rank.ends >= 0
        start[rank.ends[joined]] = rank.starts[joined]
        computes[rank.starts[joined]] = False
    kinds = np.isin(edges.kind, (STREAM, STREAM_WAIT, CONTENTION))
    freed = np.flatnonzero(ends[edges.source] & kinds & computes[edges.target])
    # Stream order is kept up to where the communication begins.
    result.source[freed] = start[edges.source[freed]]
    result.lag[freed] = result.usual[freed] = 0
    result.carries[freed] = False
    result.rewired = True


def _exposed_ns(found: KernelGraph, rank: RankGraph, ends: Bools) -> int:
    """Of a rank's transfers of a dimension, what has no compute beside it in the recording."""
    gpu, rows = rank.timeline.activity.gpu, rank.rows
    mine = np.flatnonzero((rank.ends >= 0) & ends[rank.ends])
    end = ints(gpu.end[rows[mine]])
    length = np.minimum(_transfers(found, rank.ends[mine]), end - gpu.start[rows[mine]])
    compute = rows[rank.timeline.is_compute[rows]]
    beside = Intervals.of(gpu.start[compute], gpu.end[compute])
    return int((length - beside.covered(ints(end - length), end)).sum())


def _transfers(found: KernelGraph, ends: Ints) -> Ints:
    """How long data moved, up to each of these ends of communication, ns."""
    graph = found.graph
    edges = graph.edges
    took = np.zeros(len(graph.nodes), dtype=np.int64)
    joined = np.flatnonzero(edges.kind == TRANSFER)
    np.maximum.at(took, edges.target[joined], graph.nodes.duration[edges.source[joined]])
    alone = np.flatnonzero(edges.kind == ALONE)
    took[edges.target[alone]] = transfer_of(found, alone)
    return ints(took[ends])
