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
    Bools,
    Graph,
)
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.columns.intervals import Ints, ints

CPU, COMPUTE, COMMUNICATION = range(3)
"""Codes of `Stretches.kind`: the CPU works; the GPU computes or copies; data move between ranks."""

KINDS = ("cpu", "compute", "communication")
"""What these codes are called."""


@dataclass(frozen=True, slots=True)
class Stretches:
    """The path from one node to the next, a row each: [start, end) in ns on the clock of all.

    Args:
        node: what took the time; of communication the node at which it ends.
        rank: position of the rank.
        kind: CPU, COMPUTE or COMMUNICATION.
        start, end: simulated.
    """

    node: Ints
    rank: Ints
    kind: Ints
    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.node)

    @property
    def length(self) -> Ints:
        """ns."""
        return self.end - self.start


def critical_path(
    graph: Graph, changed: Adjustment, times: Ints, last: int, begin: int, runs: int = 0
) -> Stretches:
    """The path to a node, from its begin on.

    Args:
        graph: nodes and edges.
        changed: the numbers that `times` come from.
        times: when each node is reached, ns.
        last: the node that the path leads to.
        begin: the path is cut off before this time, ns.
        runs: how long that node goes on, of GPU work; ns.
    """
    nodes = graph.nodes
    before = _reasons(graph, changed, times)
    before[times <= begin] = NONE
    back = np.where(before == NONE, NONE, changed.source[before]).tolist()
    way, node = [last], last
    while (node := back[node]) != NONE:
        way.append(node)
    target, source = ints(way[:-1]), ints(way[1:])
    taken, kind = _who(graph, before[target], source, target)
    own = int(nodes.rank[last])
    columns = np.stack(
        (
            taken,
            _ranks(nodes.rank[source], nodes.rank[target], own),
            kind,
            np.maximum(times[source], begin),
            times[target],
        )
    )
    # As long as nothing are those whose begin is cut off, and edges that hold up nobody.
    columns = columns[:, columns[4] > columns[3]]
    if runs:
        reached = int(times[last])
        whole = ints([[last], [own], [COMPUTE], [reached], [reached + runs]])
        columns = np.concatenate((whole, columns), axis=1)
    return Stretches(*columns[:, ::-1])


def _reasons(graph: Graph, changed: Adjustment, times: Ints) -> Ints:
    """For each node an edge that made it wait until its time; NONE for a root."""
    target = graph.edges.target
    weight = changed.lag + np.where(changed.carries, changed.duration[changed.source], 0)
    binds = times[changed.source] + weight == times[target]
    if changed.keep is not None:
        binds &= changed.keep
    found = np.full(len(times), NONE, dtype=np.int64)
    rows = np.flatnonzero(binds)
    found[target[rows]] = rows
    return ints(found)


def _ranks(source: Ints, target: Ints, last: int) -> Ints:
    """Of steps back from the last node: the target's rank, else the source's, else the one before.

    Args:
        source, target: ranks of the nodes, -1 of meetings.
        last: rank of the last node.
    """
    rank = np.concatenate(([last], np.where(target >= 0, target, source)))
    known = np.maximum.accumulate(np.where(rank >= 0, np.arange(len(rank)), 0))
    return ints(rank[known][1:])


def _who(graph: Graph, edge: Ints, source: Ints, target: Ints) -> tuple[Ints, Ints]:
    """Which node took the time of each edge, and of which kind it was."""
    by, begins = graph.edges.kind[edge], graph.nodes.kind[source]
    moves = _is_one_of(by, TRANSFER, ALONE)
    met = _is_one_of(begins, MEETING, END)
    works = _is_one_of(by, STREAM, STREAM_WAIT, CONTENTION) | (begins == KERNEL)
    kind = np.where(moves | met, COMMUNICATION, np.where(works, COMPUTE, CPU))
    is_source = ~moves & (met | works | (begins == POINT))
    return np.where(is_source, source, target), ints(kind)


def _is_one_of(codes: Ints, *wanted: int) -> Bools:
    found: Bools = codes == wanted[0]
    for one in wanted[1:]:
        found |= codes == one
    return found
