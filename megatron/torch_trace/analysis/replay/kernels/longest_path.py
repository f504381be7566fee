# SPDX-License-Identifier: Apache-2.0
"""When each node of a graph is reached: the longest path to it, in integer ns.

Most nodes have one edge that leads to them, and are a fixed time after its source: these chains are
added up for all at once (every pass doubles how far a node looks back). What is left, where two
edges or more meet, goes one by one, in an order in which sources are before their targets. A node
of more than two edges takes them in two by two:

    edge 1 -+
    edge 2 -+- later of both -+
    edge 3 -------------------+- later of both = the node
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.replay.kernels.graph import Bools, Graph
from megatron.torch_trace.columns.intervals import Ints, ints

_MOST_PASSES = 64
_NONE = -1


class CyclicGraphError(Exception):
    """Times contradict each other so much that no order of the nodes is left."""


@dataclass(slots=True)
class _Later:
    """The later of two, a row each: of two edges, or of one edge and the row before.

    Args:
        first, second: of each row the root or the row that either comes from; roots have the lower
            numbers.
        first_edge, second_edge: the edges; _NONE where the row before is taken as it is.
        ends: the row in which each node has all of its edges.
    """

    first: list[int]
    second: list[int]
    first_edge: Ints
    second_edge: Ints
    ends: Ints

    @classmethod
    def of(
        cls, count: int, edges: Ints, begins: Ints, anchor: Ints, roots: Ints, meets: Ints
    ) -> _Later:
        """Make rows.

        Args:
            count: of all nodes.
            edges: of nodes with two or more, node by node, sources before their targets.
            begins: position of the first edge of each of these nodes.
            anchor: node that each of the edges is a fixed time after: a root or one of `meets`.
            roots, meets: nodes without an edge, and with two or more.
        """
        is_first = np.zeros(len(edges), dtype=bool)
        is_first[begins] = True
        # Each edge but the first of a node makes a row: with the first edge, or the row before.
        at = np.flatnonzero(~is_first)
        opens = is_first[at - 1]
        row = len(roots) + np.arange(len(at))
        ends = np.append(np.flatnonzero(opens)[1:], len(at)) - 1 if len(at) else at
        number = np.full(count, _NONE)
        number[roots] = np.arange(len(roots))
        number[meets] = row[ends]
        source = number[anchor]
        return cls(
            first=np.where(opens, source[at - 1], row - 1).tolist(),
            second=source[at].tolist(),
            first_edge=np.where(opens, edges[at - 1], _NONE),
            second_edge=edges[at],
            ends=ends,
        )

    def times(self, weights: Ints, roots: Ints) -> Ints:
        """When each node is reached.

        Args:
            weights: of all edges from their anchors on, ns, and 0 behind them.
            roots: when each of these is, ns.
        """
        found = roots.tolist()
        add = found.append
        rows = zip(
            self.first,
            self.second,
            weights[self.first_edge].tolist(),
            weights[self.second_edge].tolist(),
            strict=True,
        )
        for first, second, lag, other_lag in rows:
            one = found[first] + lag
            other = found[second] + other_lag
            add(one if one > other else other)
        return ints(found[len(roots) :])[self.ends]


@dataclass(slots=True)
class LongestPaths:
    """A graph made ready to be evaluated often; the edges of it that are `used` do not change."""

    graph: Graph
    used: Ints
    source: Ints
    _anchor: Ints
    _passes: list[tuple[Ints, Ints]]
    _single: Ints
    _single_edge: Ints
    _roots: Ints
    _meets: Ints
    _later: _Later

    @classmethod
    def of(
        cls, graph: Graph, keep: Bools | None = None, source: Ints | None = None
    ) -> LongestPaths:
        """Make ready.

        Args:
            graph: of which the times of nodes give the order.
            keep: which edges count; None for all.
            source: of edges, where they are others than the graph's.

        Raises:
            CyclicGraphError: the edges form a circle.
        """
        edges = graph.edges
        source = edges.source if source is None else source
        used = np.arange(len(edges)) if keep is None else np.flatnonzero(keep)
        position = _order(graph.nodes.time, source[used], edges.target[used])
        count = len(graph.nodes)
        into = np.bincount(edges.target[used], minlength=count)
        one = into[edges.target[used]] == 1
        single, single_edge = edges.target[used[one]], used[one]
        anchor = np.arange(count)
        anchor[single] = source[single_edge]
        passes = _double(anchor, single)
        roots = np.flatnonzero(into == 0)
        several = used[~one]
        several = several[np.argsort(position[edges.target[several]], kind="stable")]
        targets = edges.target[several]
        begins = np.flatnonzero(np.diff(targets, prepend=-1))
        meets = targets[begins]
        later = _Later.of(count, several, begins, anchor[source[several]], roots, meets)
        return cls(graph, used, source, anchor, passes, single, single_edge, roots, meets, later)

    def times(self, weights: Ints, start: Ints) -> Ints:
        """When each node is reached.

        Args:
            weights: of all edges of the graph, ns.
            start: of each node that nothing leads to, ns; of others it is not looked at.
        """
        offset = self._offsets(weights)
        reached = np.zeros(len(self.graph.nodes), dtype=np.int64)
        reached[self._roots] = start[self._roots]
        reached[self._meets] = self._later.times(
            np.append(weights + offset[self.source], 0), start[self._roots]
        )
        return ints(reached[self._anchor] + offset)

    def latest(self, weights: Ints, last: Ints) -> Ints:
        """When each node may be reached at the latest, without anything of `last` being later.

        Args:
            weights: of all edges, ns.
            last: of each node when it may be at the latest for itself; a large number for any time.
        """
        edges = self.graph.edges
        latest = last.astype(np.int64)
        position = _order(self.graph.nodes.time, self.source[self.used], edges.target[self.used])
        order = self.used[np.argsort(-position[edges.target[self.used]], kind="stable")]
        found = latest.tolist()
        for source, target, weight in zip(
            self.source[order].tolist(),
            edges.target[order].tolist(),
            weights[order].tolist(),
            strict=True,
        ):
            time = found[target] - weight
            if time < found[source]:
                found[source] = time
        return ints(found)

    def _offsets(self, weights: Ints) -> Ints:
        offset = np.zeros(len(self.graph.nodes), dtype=np.int64)
        offset[self._single] = weights[self._single_edge]
        for nodes, back in self._passes:
            offset[nodes] += offset[back]
        return offset


def _double(anchor: Ints, single: Ints) -> list[tuple[Ints, Ints]]:
    """Let `anchor` of single nodes point to the first one of their chain, and how it came there."""
    passes: list[tuple[Ints, Ints]] = []
    nodes = single
    chained = np.zeros(len(anchor), dtype=bool)
    chained[single] = True
    while True:
        back = anchor[nodes]
        moving = chained[back] & (back != nodes)
        nodes, back = nodes[moving], back[moving]
        if not len(nodes):
            return passes
        if len(passes) > _MOST_PASSES:
            raise CyclicGraphError
        passes.append((nodes, back))
        anchor[nodes] = anchor[back]


def _order(time: Ints, source: Ints, target: Ints) -> Ints:
    """Position of each node: by time, and behind all that leads to it."""
    position = _positions(time)
    wrong = position[source] >= position[target]
    if not wrong.any():
        return position
    # Levels of the edges that contradict the times, or have both ends at one time.
    key = time.astype(np.int64) * 1
    for _ in range(_MOST_PASSES * 64):
        late = key[target] <= key[source]
        if not late.any():
            return _positions(key)
        np.maximum.at(key, target[late], key[source[late]] + 1)
    raise CyclicGraphError


def _positions(key: Ints) -> Ints:
    found = np.empty(len(key), dtype=np.int64)
    found[np.argsort(key, kind="stable")] = np.arange(len(key))
    return found
