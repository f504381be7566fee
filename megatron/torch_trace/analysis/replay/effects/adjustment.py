# SPDX-License-Identifier: Apache-2.0
"""A graph with other numbers: what changes are made on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from megatron.torch_trace.analysis.replay.kernels.graph import WAIT, Bools
from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph
from megatron.torch_trace.analysis.replay.kernels.peer_segments import segments_of as segments_of
from megatron.torch_trace.columns.intervals import Ints, ints


@dataclass(slots=True)
class Adjustment:
    """A graph with other numbers.

    Args:
        duration: of nodes, ns.
        lag, usual: of edges, ns; see `Edges`.
        source: of edges.
        carries: whether an edge carries its source's duration.
        keep: which edges count; None for all.
        rewired: sources or edges are others than recorded.
        apart: of other durations that are as likely what they differ by from `duration`, ns.
        mended: ranks that a change takes the peers' times for; nobody's peers.
        excess: by rank, its segments (nodes) that took far longer than on its peers, and by how
            much, ns.
        late_work: the same of its GPU: rows of `activity.gpu`.
        luck_ns: by how much these differ by chance, if every one does as much as peers ever do.
        waits: by the flag of a change, what of nodes the recording says it changes, ns: recorded
            waits for what is no CPU, such as storage, and collections of garbage.
        still: what is left of all these waits after the changes, ns; None if no change is of them.
    """

    duration: Ints
    lag: Ints
    usual: Ints
    source: Ints
    carries: Bools
    keep: Bools | None = None
    rewired: bool = False
    apart: list[Ints] = field(default_factory=list)
    mended: frozenset[int] = frozenset()
    excess: dict[int, tuple[Ints, Ints]] = field(default_factory=dict)
    late_work: dict[int, tuple[Ints, Ints]] = field(default_factory=dict)
    luck_ns: float = 0.0
    waits: dict[str, Ints] = field(default_factory=dict)
    still: Ints | None = None

    @classmethod
    def none(cls, found: KernelGraph) -> Adjustment:
        """As recorded."""
        nodes, edges = found.graph.nodes, found.graph.edges
        return cls(
            nodes.duration.copy(),
            edges.lag.copy(),
            edges.usual.copy(),
            edges.source.copy(),
            edges.carries.copy(),
        )

    @property
    def variants(self) -> list[Ints]:
        """Other durations that are as likely; what they differ by is the error of the changes."""
        return [ints(np.maximum(self.duration + apart, 0)) for apart in self.apart]

    def may_be(self, duration: Ints) -> None:
        """Durations that are as likely as the present ones."""
        self.apart.append(ints(duration - self.duration))

    def freed(self, found: KernelGraph) -> Ints:
        """Nodes that waited for work of the GPU, and do no more."""
        edges = found.graph.edges
        if self.keep is None:
            return ints([])
        waits = edges.kind == WAIT
        still = edges.target[waits & self.keep]
        return ints(np.setdiff1d(edges.target[waits & ~self.keep], still))

    def without(self, gone: Bools) -> None:
        """Take edges out."""
        self.keep = ~gone if self.keep is None else self.keep & ~gone
        self.rewired = True


def scaled(values: Ints, factor: float) -> Ints:
    """Times a factor, in whole ns."""
    return ints(np.rint(values * factor).astype(np.int64))
