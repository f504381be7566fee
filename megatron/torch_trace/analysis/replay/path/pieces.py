# SPDX-License-Identifier: Apache-2.0
"""The critical path in a few readable pieces: neighbours of one name are one piece.

rank 2 cpu 61.2 ms forward micro-batch 3, then communication 14.0 ms dp reduce_scatter, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from megatron.torch_trace.analysis.replay.kernels.graph import Graph
from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph
from megatron.torch_trace.analysis.replay.path.critical_path import (
    COMMUNICATION,
    COMPUTE,
    CPU,
    Stretch,
)
from megatron.torch_trace.analysis.replay.path.piece_names import PieceNames
from megatron.torch_trace.columns.intervals import ints

_MOST_PIECES = 24
_SHARES = (0.002, 0.005, 0.01, 0.02, 0.05)


@dataclass(frozen=True, slots=True)
class PathPiece:
    """A part of the critical path.

    Args:
        rank: global rank; of communication the one that goes on after it.
        kind: `cpu`, `compute` or `communication`.
        name: a phase or micro-batch, a collective with its dimension, a family of kernels.
        time_ns: how long the path is in it; what is too short to be told is part of a neighbour.
        function: the Python function in which its longest segment was, where stacks are recorded.
    """

    rank: int
    kind: str
    name: str
    time_ns: int
    function: str | None = None


def pieces_of(found: KernelGraph, stretches: Sequence[Stretch]) -> tuple[PathPiece, ...]:
    """The path in pieces."""
    names = [PieceNames(rank, calls) for rank, calls in zip(found.ranks, found.calls, strict=True)]
    told = _names(found, stretches, names)
    pieces: list[tuple[PathPiece, Stretch]] = []
    for stretch, name in zip(stretches, told, strict=True):
        rank = found.ranks[stretch.rank].rank
        pieces.append((PathPiece(rank, stretch.kind, name, stretch.end - stretch.start), stretch))
    pieces = _merged(pieces)
    total = sum(piece.time_ns for piece, _ in pieces)
    for share in _SHARES:
        if len(pieces) <= _MOST_PIECES:
            break
        pieces = _merged(_without_small(pieces, share * total))
    return tuple(_with_function(found.graph, piece, one, names) for piece, one in pieces)


def _names(
    found: KernelGraph, stretches: Sequence[Stretch], names: Sequence[PieceNames]
) -> list[str]:
    nodes = found.graph.nodes
    told = [""] * len(stretches)
    for position, rank in enumerate(found.ranks):
        mine = [n for n, one in enumerate(stretches) if one.rank == position and one.kind == CPU]
        at = ints([stretches[n].node for n in mine])
        middle = nodes.time[at] + nodes.duration[at] // 2 - rank.shift
        for n, name in zip(mine, names[position].cpu(middle, nodes.lane[at]), strict=True):
            told[n] = name
    for n, one in enumerate(stretches):
        row = int(nodes.row[one.node])
        if one.kind == COMPUTE:
            told[n] = names[one.rank].compute(row)
        elif one.kind == COMMUNICATION:
            told[n] = _communication(found, one, names)
    return told


def _communication(found: KernelGraph, one: Stretch, names: Sequence[PieceNames]) -> str:
    nodes = found.graph.nodes
    node = one.node
    if nodes.rank[node] < 0:
        after = np.flatnonzero(found.graph.edges.source == node)
        ends = found.graph.edges.target[after]
        node = int(ends[0]) if len(ends) else node
    rank, row = int(nodes.rank[node]), int(nodes.row[node])
    return names[rank].communication(row) if rank >= 0 else "communication"


_Piece = tuple[PathPiece, Stretch]


def _merged(pieces: list[_Piece]) -> list[_Piece]:
    """Neighbours of one rank, kind and name as one; its stretch is the longest."""
    found: list[_Piece] = []
    for piece, stretch in pieces:
        if found:
            last, longest = found[-1]
            if (last.rank, last.kind, last.name) == (piece.rank, piece.kind, piece.name):
                longer = max(longest, stretch, key=lambda one: one.end - one.start)
                found[-1] = replace(last, time_ns=last.time_ns + piece.time_ns), longer
                continue
        found.append((piece, stretch))
    return found


def _without_small(pieces: list[_Piece], least: float) -> list[_Piece]:
    """Pieces shorter than `least` as a part of the one before, the first of the one behind."""
    found: list[_Piece] = []
    waiting = 0
    for piece, stretch in pieces:
        if piece.time_ns >= least:
            found.append((replace(piece, time_ns=piece.time_ns + waiting), stretch))
            waiting = 0
        elif found:
            last, longest = found[-1]
            found[-1] = replace(last, time_ns=last.time_ns + piece.time_ns), longest
        else:
            waiting += piece.time_ns
    return found or pieces


def _with_function(
    graph: Graph, piece: PathPiece, longest: Stretch, names: Sequence[PieceNames]
) -> PathPiece:
    if piece.kind != CPU:
        return piece
    nodes, node = graph.nodes, longest.node
    own = names[longest.rank]
    middle = int(nodes.time[node] + nodes.duration[node] // 2) - own.rank.shift
    return replace(piece, function=own.function(middle, int(nodes.lane[node])))
