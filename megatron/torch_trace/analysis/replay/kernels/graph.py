# SPDX-License-Identifier: Apache-2.0
"""The graph of an iteration over ranks: columns of nodes and of edges, nothing per event.

    CPU thread   o-----o-----o=====o----o        o point, --- CPU segment, === waits for the GPU
                  \\     \\         /
    stream         [kernel][kernel][collective)  a kernel begins after its launch and the one before
                                        |
    another rank                  [collective)   both begin, then data move, then both end

A node is an instant, and `duration` is what happens from then on: of a point on a CPU thread the
segment up to the next one, of a kernel its run, of a meeting of ranks the transfer. An edge says
that its target is not before its source, plus the source's duration where it `carries` that, plus
`lag`. Times are integer ns, of all ranks on the clock of the lowest one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.columns.intervals import Ints, ints

POINT, KERNEL, MEETING, END = range(4)
"""Codes of `Nodes.kind`: on a CPU thread; GPU work begins; ranks have met; communication ends."""

(
    ORDER, LAUNCH, STREAM, WAIT, HANDOVER, MEET, TRANSFER, STREAM_WAIT, CONTENTION, ALONE,
) = range(10)  # fmt: skip
"""Codes of `Edges.kind`."""

EDGE_KINDS = (
    "CPU order", "launch", "stream order", "synchronisation", "thread hand-over", "arrival",
    "transfer", "stream wait", "contention", "transfer of one rank",
)  # fmt: skip
"""What the codes of `Edges.kind` mean."""

Bools = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Nodes:
    """One row a node.

    Args:
        time: recorded, ns.
        duration: ns, from there on.
        kind: POINT, KERNEL, MEETING or END.
        rank: position of the rank; -1 of meetings.
        row: of a point the row of `calls` that begins there, or NONE; of a kernel and its end the
            row of `gpu`; of a meeting its number.
        lane: of a point the code of its track; of GPU work its stream; -1 of meetings.
    """

    time: Ints
    duration: Ints
    kind: Ints
    rank: Ints
    row: Ints
    lane: Ints

    def __len__(self) -> int:
        return len(self.time)


@dataclass(slots=True)
class Edges:
    """One row an edge.

    Args:
        source, target: nodes.
        lag: ns, as recorded.
        usual: ns, as edges of this kind usually have in this trace; the difference to `lag` is
            what a replay cannot know of an iteration that was not recorded.
        carries: whether the source's duration has to pass.
        kind: codes into `EDGE_KINDS`.
        inferred: nothing in the file tells it; times do.
    """

    source: Ints
    target: Ints
    lag: Ints
    usual: Ints
    carries: Bools
    kind: Ints
    inferred: Bools

    def __len__(self) -> int:
        return len(self.source)

    def only(self, keep: Bools) -> Edges:
        """These edges."""
        return Edges(*(getattr(self, f.name)[keep] for f in fields(self)))


_Table = TypeVar("_Table", Nodes, Edges)


@dataclass(slots=True)
class Graph:
    """Nodes and edges of all ranks."""

    nodes: Nodes
    edges: Edges

    def weights(self, duration: Ints, lag: Ints) -> Ints:
        """How long after its source each edge's target is at least, ns."""
        edges = self.edges
        return ints(lag + np.where(edges.carries, duration[edges.source], 0))


class GraphBuilder:
    """Collects nodes and edges."""

    def __init__(self) -> None:
        self.count = 0
        self._nodes: list[Nodes] = []
        self._edges: list[Edges] = []

    def nodes(
        self,
        time: Ints,
        duration: Ints | int,
        kind: int,
        *,
        rank: int = -1,
        row: Ints | int = -1,
        lane: Ints | int = -1,
    ) -> Ints:
        """Add nodes; their numbers."""
        size = len(time)

        def column(value: Ints | int) -> Ints:
            return np.full(size, value, dtype=np.int64) if isinstance(value, int) else ints(value)

        self._nodes.append(
            Nodes(ints(time), *(column(one) for one in (duration, kind, rank, row, lane)))
        )
        self.count += size
        return np.arange(self.count - size, self.count)

    def edges(
        self,
        source: Ints,
        target: Ints,
        lag: Ints | int,
        kind: int,
        *,
        usual: Ints | None = None,
        carries: bool = True,
        inferred: bool = False,
    ) -> None:
        """Add edges."""
        size = len(source)
        lags = np.full(size, lag, dtype=np.int64) if isinstance(lag, int) else ints(lag)
        self._edges.append(
            Edges(
                ints(source),
                ints(target),
                lags,
                lags if usual is None else ints(usual),
                np.full(size, carries),
                np.full(size, kind, dtype=np.int64),
                np.full(size, inferred),
            )
        )

    def graph(self) -> Graph:
        """All of it."""
        return Graph(_joined(Nodes, self._nodes), _joined(Edges, self._edges))


def _joined(table: type[_Table], parts: list[_Table]) -> _Table:
    return table(
        *(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(table))
    )
