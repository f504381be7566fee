# SPDX-License-Identifier: Apache-2.0
"""The critical path in a few readable pieces: neighbours of one name are one piece.

rank 2 cpu 61.2 ms forward micro-batch 3, then communication 14.0 ms dp reduce_scatter, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from megatron.torch_trace.analysis.replay.kernels.graph import POINT, TRANSFER, Graph
from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph
from megatron.torch_trace.analysis.replay.path.critical_path import (
    COMMUNICATION,
    COMPUTE,
    CPU,
    KINDS,
    Stretches,
)
from megatron.torch_trace.analysis.replay.path.piece_names import PieceNames
from megatron.torch_trace.analysis.timeline.moment import Moment
from megatron.torch_trace.columns.codes import Codes
from megatron.torch_trace.columns.intervals import Ints, ints

_FEW_PIECES, _MOST_PIECES = 4, 24
_SHARES = (0.002, 0.005, 0.01, 0.02)


@dataclass(frozen=True, slots=True)
class PathPiece:
    """A part of the critical path.

    Args:
        rank: global rank; of communication the one that goes on after it.
        kind: `cpu`, `compute` or `communication`.
        name: a phase or micro-batch, a collective with its dimension, a family of kernels.
        time_ns: how long the path is in it; what is too short to be told is part of a neighbour.
        function: the Python function in which its longest segment was, where stacks are recorded.
        count: how many times the path comes through it; all of them are one piece where a step
            goes through more than can be read.
        longest: its longest segment as it was recorded, in the trace of the rank; None where that
            segment is of no work of the rank.
    """

    rank: int
    kind: str
    name: str
    time_ns: int
    function: str | None = None
    count: int = 1
    longest: Moment | None = None


@dataclass(frozen=True, slots=True)
class _Stretch:
    """One row of `Stretches`."""

    node: int
    rank: int
    kind: int
    start: int
    end: int


_Piece = tuple[PathPiece, _Stretch]


def pieces_of(found: KernelGraph, stretches: Stretches) -> tuple[PathPiece, ...]:
    """The path in pieces."""
    names = [PieceNames(rank, calls) for rank, calls in zip(found.ranks, found.calls, strict=True)]
    pieces = _readable(_joined(found, stretches, _names(found, stretches, names)))
    ends = _ends_of_meetings(found)
    return tuple(
        replace(_with_function(found.graph, piece, one, names), longest=_moment(found, one, ends))
        for piece, one in pieces
    )


def _joined(found: KernelGraph, stretches: Stretches, told: Sequence[str]) -> list[_Piece]:
    """Neighbours of one rank, kind and name as one piece, with the first of its longest."""
    if not len(stretches):
        return []
    known = Codes()
    name = known.of(told)
    first = np.ones(len(stretches), dtype=bool)
    first[1:] = np.diff(name) != 0
    for column in (stretches.rank, stretches.kind):
        first[1:] |= np.diff(column) != 0
    begins = np.flatnonzero(first)
    length = stretches.length
    times = np.add.reduceat(length, begins)
    piece = np.cumsum(first) - 1
    longest = np.flatnonzero(length == np.maximum.reduceat(length, begins)[piece])
    longest = longest[np.flatnonzero(np.diff(piece[longest], prepend=-1))]
    columns = (stretches.node, stretches.rank, stretches.kind, stretches.start, stretches.end)
    rows = zip(*(column[longest].tolist() for column in columns), strict=True)
    return [
        (
            PathPiece(found.ranks[one.rank].rank, KINDS[one.kind], told[at], time),
            one,
        )
        for at, time, one in zip(
            begins.tolist(), times.tolist(), (_Stretch(*row) for row in rows), strict=True
        )
    ]


def _names(found: KernelGraph, stretches: Stretches, names: Sequence[PieceNames]) -> list[str]:
    nodes, told = found.graph.nodes, [""] * len(stretches)
    for position, rank in enumerate(found.ranks):
        mine = np.flatnonzero((stretches.rank == position) & (stretches.kind == CPU))
        at = stretches.node[mine]
        middle = nodes.time[at] + nodes.duration[at] // 2 - rank.shift
        tracks = names[position].tracks(at, nodes.lane[at])
        for n, name in zip(mine.tolist(), names[position].cpu(middle, tracks), strict=True):
            told[n] = name
        work = np.flatnonzero((stretches.rank == position) & (stretches.kind == COMPUTE))
        rows = nodes.row[stretches.node[work]]
        for n, name in zip(work.tolist(), names[position].compute(rows), strict=True):
            told[n] = name
    ends = _ends_of_meetings(found)
    for n in np.flatnonzero(stretches.kind == COMMUNICATION).tolist():
        node = int(ends[stretches.node[n]])
        told[n] = names[int(nodes.rank[node])].communication(int(nodes.row[node]))
    return told


def _ends_of_meetings(found: KernelGraph) -> Ints:
    """For each meeting the end of one of its kernels; for other nodes the node itself."""
    nodes, edges = found.graph.nodes, found.graph.edges
    ends = np.arange(len(nodes))
    rows = np.flatnonzero(edges.kind == TRANSFER)
    ends[edges.source[rows]] = edges.target[rows]
    return ends


def _moment(found: KernelGraph, one: _Stretch, ends: Ints) -> Moment | None:
    """Where a stretch is in the trace of its rank; None if it is of no work of that rank."""
    nodes, rank = found.graph.nodes, found.ranks[one.rank]
    length = one.end - one.start
    if one.kind == CPU:
        time = int(nodes.time[one.node]) - rank.shift
        if int(nodes.kind[one.node]) == POINT:
            return Moment(time, int(nodes.duration[one.node]) or length)
        return Moment(time - length, length)
    node = int(ends[one.node])
    row = int(nodes.row[node])
    if int(nodes.rank[node]) != one.rank or row < 0:
        return None
    work = rank.timeline.activity.gpu
    start = int(work.start[row])
    return Moment(start, int(work.end[row]) - start)


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


def _readable(pieces: list[_Piece]) -> list[_Piece]:
    """As few as can be read: without small ones; of very many, those of one name together."""
    total = sum(piece.time_ns for piece, _ in pieces)
    shorter = pieces
    for share in _SHARES:
        if len(shorter) <= _MOST_PIECES:
            break
        shorter = _merged(_without_small(pieces, share * total))
    if _FEW_PIECES <= len(shorter) <= _MOST_PIECES or shorter is pieces:
        return shorter
    return _summed(_merged(_without_small(pieces, _SHARES[0] * total)))


def _without_small(pieces: list[_Piece], least: float) -> list[_Piece]:
    """Pieces shorter than `least` as a part of the one before, the first of the one behind."""
    kept: list[_Piece] = []
    times: list[int] = []
    waiting = 0
    for one in pieces:
        time = one[0].time_ns
        if time >= least:
            kept.append(one)
            times.append(time + waiting)
            waiting = 0
        elif times:
            times[-1] += time
        else:
            waiting += time
    found = zip(kept, times, strict=True)
    return [(replace(piece, time_ns=time), stretch) for (piece, stretch), time in found] or pieces


def _summed(pieces: list[_Piece]) -> list[_Piece]:
    """All pieces of one rank, kind and name as one, where the first of them is."""
    found: dict[tuple[int, str, str], _Piece] = {}
    for piece, stretch in pieces:
        key = piece.rank, piece.kind, piece.name
        if key in found:
            last, longest = found[key]
            longer = max(longest, stretch, key=lambda one: one.end - one.start)
            time, count = last.time_ns + piece.time_ns, last.count + piece.count
            found[key] = replace(last, time_ns=time, count=count), longer
        else:
            found[key] = piece, stretch
    return list(found.values())


def _with_function(
    graph: Graph, piece: PathPiece, longest: _Stretch, names: Sequence[PieceNames]
) -> PathPiece:
    if longest.kind != CPU:
        return piece
    nodes, node = graph.nodes, longest.node
    own = names[longest.rank]
    middle = int(nodes.time[node] + nodes.duration[node] // 2) - own.rank.shift
    track = own.tracks(ints([node]), nodes.lane[[node]])
    return replace(piece, function=own.function(middle, int(track[0])))
