# SPDX-License-Identifier: Apache-2.0
"""A critical path in pieces that can be read: which are put together, and where to look."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine import Machine, cpu, reduce, run

from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph
from megatron.torch_trace.analysis.replay.path.critical_path import (
    COMMUNICATION,
    COMPUTE,
    CPU,
    KINDS,
    Stretches,
)
from megatron.torch_trace.analysis.replay.path.pieces import pieces_of
from megatron.torch_trace.analysis.replay.replay import Replay
from megatron.torch_trace.analysis.timeline.moment import Moment
from megatron.torch_trace.columns.intervals import ints

Lengths = list[tuple[int, int, int]]
"""Rank, kind and ns of each stretch of a path."""
Row = tuple[int, int, int, int, int]
"""Node, rank, kind, start and end of one."""


@pytest.fixture
def graph(tmp_path: Path) -> KernelGraph:
    """Two ranks that work for 30 us, compute for 20 and send for 10."""
    programs = {rank: [cpu(30_000), run("gemm", 20_000), reduce(10_000)] for rank in (0, 1)}
    return Replay.of(Machine(programs).record(tmp_path)).found


def path_of(graph: KernelGraph, lengths: Lengths) -> Stretches:
    """A path of such stretches, one after the other."""
    rows: list[Row] = []
    for position, kind, length in lengths:
        rank = graph.ranks[position]
        nodes = (rank.first_point, int(rank.starts[0]), int(rank.ends[1]))
        start = rows[-1][-1] if rows else 0
        rows.append((nodes[kind], position, kind, start, start + length))
    return rows_of(rows)


def rows_of(rows: list[Row]) -> Stretches:
    return Stretches(*(ints(column) for column in zip(*rows, strict=True)))


def told(graph: KernelGraph, lengths: Lengths) -> list[tuple[int, int, int, int]]:
    """Rank, kind, ns and count of each piece of such a path."""
    pieces = pieces_of(graph, path_of(graph, lengths))
    return [(one.rank, KINDS.index(one.kind), one.time_ns, one.count) for one in pieces]


def test_neighbours_of_one_name_are_one_piece_and_its_longest_is_shown(graph: KernelGraph) -> None:
    path = path_of(graph, [(0, CPU, 10), (0, CPU, 20), (1, CPU, 5), (0, CPU, 1)])
    pieces = pieces_of(graph, path)
    assert [(one.rank, one.time_ns) for one in pieces] == [(0, 30), (1, 5), (0, 1)]
    assert [one.name for one in pieces] == ["training loop"] * 3


def test_up_to_24_pieces_are_shown_however_short_they_are(graph: KernelGraph) -> None:
    lengths: Lengths = [(number % 2, CPU, 1 if number else 10_000) for number in range(24)]
    assert told(graph, lengths) == [(*one, 1) for one in lengths]


def test_of_more_the_short_ones_are_part_of_the_one_before_or_else_of_the_one_behind(
    graph: KernelGraph,
) -> None:
    short: Lengths = [(0, COMPUTE, 1), (1, COMPUTE, 1)]
    long: list[Lengths] = [[(number % 2, CPU, 1_000)] for number in range(5)]
    lengths = [*short, *(one for each in long for one in (*each, *short, *short))]
    assert told(graph, lengths) == [
        (0, CPU, 1_006, 1), *((number % 2, CPU, 1_004, 1) for number in range(1, 5)),
    ]  # fmt: skip


def test_a_piece_as_long_as_the_least_share_is_no_short_one(graph: KernelGraph) -> None:
    # 2 ns of 1,000, and 25 pieces of which two are shorter.
    lengths: Lengths = [(0, COMPUTE, 1), (1, COMPUTE, 1), (0, CPU, 954)]
    lengths += [(1 - number % 2, CPU, 2) for number in range(22)]
    assert told(graph, lengths) == [
        (0, CPU, 956, 1), *((1 - number % 2, CPU, 2, 1) for number in range(22)),
    ]  # fmt: skip


def test_what_cannot_be_shortened_is_one_piece_a_name_with_how_often_it_is_there(
    graph: KernelGraph,
) -> None:
    lengths: Lengths = [(number % 2, CPU, 1_000 + number) for number in range(30)]
    assert told(graph, lengths) == [(0, CPU, 15_210, 15), (1, CPU, 15_225, 15)]
    pieces = pieces_of(graph, path_of(graph, lengths))
    assert [one.longest for one in pieces] == [Moment(0, 30_000)] * 2


def test_a_path_is_not_shortened_to_less_than_4_pieces(graph: KernelGraph) -> None:
    lengths: Lengths = [(0, CPU, 1_000_000)]
    lengths += [(1 - number % 2, COMPUTE, 3_000) for number in range(25)]
    assert told(graph, lengths) == [
        (0, CPU, 1_000_000, 1),
        (1, COMPUTE, 13 * 3_000, 13),
        (0, COMPUTE, 12 * 3_000, 12),
    ]


def test_a_piece_is_shown_where_its_rank_has_recorded_it(graph: KernelGraph) -> None:
    path = path_of(graph, [(1, CPU, 40), (1, COMPUTE, 50), (1, COMMUNICATION, 60)])
    moments = [one.longest for one in pieces_of(graph, path)]
    assert moments == [Moment(0, 30_000), Moment(35_000, 20_000), Moment(56_500, 10_000)]
    # What another rank sends is no work of this one; a start has what came before it.
    last_point = graph.ranks[1].first_point + len(graph.ranks[1].points) - 1
    others: list[Row] = [
        (int(graph.ranks[0].ends[1]), 1, COMMUNICATION, 0, 60),
        (int(graph.ranks[1].starts[0]), 1, CPU, 60, 90),
    ]
    moments = [one.longest for one in pieces_of(graph, rows_of(others))]
    assert moments == [None, Moment(34_970, 30)]
    (last,) = pieces_of(graph, rows_of([(last_point, 1, CPU, 90, 100)]))
    assert last.longest is not None
    assert last.longest.duration_ns == 10
