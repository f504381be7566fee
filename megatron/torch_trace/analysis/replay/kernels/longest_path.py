# SPDX-License-Identifier: Apache-2.0
"""When each node of a graph is reached: the longest path to it, in integer ns.

Most nodes have one edge that leads to them, and are a fixed time after its source: these chains are
added up for all at once (every pass doubles how far a node looks back). What is left, where two
edges or more meet, goes one by one, in an order in which sources are before their targets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.replay.kernels.graph import Bools, Graph
from megatron.torch_trace.columns.intervals import Ints, ints

_MOST_PASSES = 64
_FAR = 1 << 62


class CyclicGraphError(Exception):
    """Times contradict each other so much that no order of the nodes is left."""


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
    _first: Ints
    _edges: Ints
    _steps: list[tuple[int, int]]

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
        first = np.flatnonzero(np.diff(targets, prepend=-1))
        meets = targets[first]
        # Numbers of the nodes that are not a fixed time after another: roots, then meets.
        number = np.full(count, -1, dtype=np.int64)
        number[roots] = np.arange(len(roots))
        number[meets] = len(roots) + np.arange(len(meets))
        sources = number[anchor[source[several]]]
        goals = number[targets]
        steps = list(zip(goals.tolist(), sources.tolist(), strict=True))
        return cls(
            graph,
            used,
            source,
            anchor,
            passes,
            single,
            single_edge,
            roots,
            meets,
            first,
            several,
            steps,
        )

    def times(self, weights: Ints, start: Ints) -> Ints:
        """When each node is reached.

        Args:
            weights: of all edges of the graph, ns.
            start: of each node that nothing leads to, ns; of others it is not looked at.
        """
        offset = self._offsets(weights)
        steps = (weights[self._edges] + offset[self.source[self._edges]]).tolist()
        found = start[self._roots].tolist() + [-_FAR] * len(self._meets)
        for (goal, source), weight in zip(self._steps, steps, strict=True):
            time = found[source] + weight
            if time > found[goal]:
                found[goal] = time
        reached = np.zeros(len(self.graph.nodes), dtype=np.int64)
        reached[self._roots] = found[: len(self._roots)]
        reached[self._meets] = found[len(self._roots) :]
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
