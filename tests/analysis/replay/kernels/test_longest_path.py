# SPDX-License-Identifier: Apache-2.0
"""Nodes are reached by the longest way: along chains, and where two edges or more meet."""

from __future__ import annotations

import numpy as np
import pytest

from megatron.torch_trace.analysis.replay.kernels.graph import ORDER, POINT, Graph, GraphBuilder
from megatron.torch_trace.analysis.replay.kernels.longest_path import (
    CyclicGraphError,
    LongestPaths,
)
from megatron.torch_trace.columns.intervals import ints


def graph(times: list[int], edges: list[tuple[int, int, int]]) -> Graph:
    """Nodes with their recorded times; edges of (source, target, lag)."""
    builder = GraphBuilder()
    builder.nodes(ints(times), 0, POINT)
    columns = np.array(edges, dtype=np.int64).reshape(-1, 3).T
    builder.edges(*columns, ORDER, carries=False)
    return builder.graph()


def reached(of: Graph, lag: list[int] | None = None, keep: list[bool] | None = None) -> list[int]:
    paths = LongestPaths.of(of, None if keep is None else np.array(keep))
    weights = of.edges.lag if lag is None else ints(lag)
    found: list[int] = paths.times(weights, of.nodes.time).tolist()
    return found


def test_a_node_of_three_edges_is_reached_by_the_longest_whichever_it_is() -> None:
    edges = [(0, 3, 5), (1, 3, 5), (2, 3, 5), (3, 4, 1)]
    assert reached(graph([0, 1, 2, 9, 10], edges)) == [0, 1, 2, 7, 8]
    assert reached(graph([0, 1, 2, 9, 10], edges), [50, 5, 5, 1]) == [0, 1, 2, 50, 51]
    assert reached(graph([0, 1, 2, 9, 10], edges), [5, 50, 5, 1]) == [0, 1, 2, 51, 52]


def test_meetings_behind_chains_and_meetings_follow_each_other() -> None:
    #  0 -> 1 -> 3 -> 5 -> 6 -> 7,   2 -> 3,   4 -> 5,   0 -> 7
    edges = [(0, 1, 10), (1, 3, 10), (2, 3, 4), (3, 5, 1), (4, 5, 100), (5, 6, 2), (6, 7, 2)]
    of = graph([0, 10, 15, 20, 21, 122, 124, 126], [*edges, (0, 7, 300)])
    assert reached(of) == [0, 10, 15, 20, 21, 121, 123, 300]
    without = [True] * 7 + [False]
    assert reached(of, keep=without) == [0, 10, 15, 20, 21, 121, 123, 125]


def test_a_graph_without_edges_is_where_it_was_recorded() -> None:
    assert reached(graph([3, 1, 2], [])) == [3, 1, 2]


def test_edges_in_a_circle_are_an_error() -> None:
    with pytest.raises(CyclicGraphError):
        LongestPaths.of(graph([0, 1], [(0, 1, 1), (1, 0, 1)]))
