# SPDX-License-Identifier: Apache-2.0
"""The path that an iteration could not avoid: back from its end, along what came last each time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.replay.effects.adjustment import Adjustment
from megatron.torch_trace.analysis.replay.kernels.graph import (
    ALONE,
    CONTENTION,
    END,
    KERNEL,
    MEETING,
    POINT,
    STREAM,
    STREAM_WAIT,
    TRANSFER,
    Graph,
)
from megatron.torch_trace.columns.intervals import Ints, ints

CPU, COMPUTE, COMMUNICATION = "cpu", "compute", "communication"
"""Kinds of pieces: the CPU works; the GPU computes or copies; data move between ranks."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The path from one node to the next: [start, end) in ns on the clock of all, simulated.

    Args:
        node: what took the time; of communication the node at which it ends.
        rank: position of the rank.
        kind: CPU, COMPUTE or COMMUNICATION.
    """

    node: int
    rank: int
    kind: str
    start: int
    end: int


def critical_path(
    graph: Graph, changed: Adjustment, times: Ints, last: int, begin: int, runs: int = 0
) -> list[Stretch]:
    """The path to a node, from its begin on.

    Args:
        graph: nodes and edges.
        changed: the numbers that `times` come from.
        times: when each node is reached, ns.
        last: the node that the path leads to.
        begin: the path is cut off before this time, ns.
        runs: how long that node goes on, of GPU work; ns.
    """
    before = _reasons(graph, changed, times)
    nodes = graph.nodes
    found: list[Stretch] = []
    node, rank = last, int(nodes.rank[last])
    if runs:
        found.append(Stretch(last, rank, COMPUTE, int(times[last]), int(times[last]) + runs))
    while True:
        edge = int(before[node])
        if edge < 0 or times[node] <= begin:
            break
        source = int(changed.source[edge])
        rank = _rank_of(graph, source, node, rank)
        taken, kind = _who(graph, edge, source, node)
        start, end = max(int(times[source]), begin), int(times[node])
        if end > start:
            found.append(Stretch(taken, rank, kind, start, end))
        node = source
    return found[::-1]


def _reasons(graph: Graph, changed: Adjustment, times: Ints) -> Ints:
    """For each node an edge that made it wait until its time; -1 for a root."""
    target = graph.edges.target
    weight = changed.lag + np.where(changed.carries, changed.duration[changed.source], 0)
    binds = times[changed.source] + weight == times[target]
    if changed.keep is not None:
        binds &= changed.keep
    found = np.full(len(times), -1, dtype=np.int64)
    rows = np.flatnonzero(binds)
    found[target[rows]] = rows
    return ints(found)


def _rank_of(graph: Graph, source: int, target: int, otherwise: int) -> int:
    for node in (target, source):
        if graph.nodes.rank[node] >= 0:
            return int(graph.nodes.rank[node])
    return otherwise


def _who(graph: Graph, edge: int, source: int, target: int) -> tuple[int, str]:
    """Which node took the time of an edge, and of which kind it was."""
    nodes, edges = graph.nodes, graph.edges
    kind = int(edges.kind[edge])
    if kind in (TRANSFER, ALONE):
        return target, COMMUNICATION
    if int(nodes.kind[source]) in (MEETING, END):
        return source, COMMUNICATION
    if kind in (STREAM, STREAM_WAIT, CONTENTION) or int(nodes.kind[source]) == KERNEL:
        return source, COMPUTE
    return (source if int(nodes.kind[source]) == POINT else target), CPU
