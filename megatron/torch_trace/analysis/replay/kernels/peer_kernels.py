# SPDX-License-Identifier: Apache-2.0
"""Which GPU work of another rank is the same work: the n-th by its name in its step.

    rank 0   gemm  norm  gemm                 gemm  norm  gemm
    rank 1   gemm  norm  gemm  spin           gemm  norm  gemm_2

What has no partner is compared as a whole: rank 1's `spin` has nothing beside it on rank 0, and its
`gemm_2`, another choice of a library's, has rank 0's second `gemm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from megatron.torch_trace.analysis.replay.kernels.peer_segments import occurrence, places
from megatron.torch_trace.analysis.replay.kernels.rank_graph import RankGraph
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.integer_arrays import distinct


class PeerKernels:
    """The GPU work of ranks, communication aside, beside that of others.

    Args:
        ranks: of the graph; a rank's number here is its position in them.
    """

    def __init__(self, ranks: Sequence[RankGraph]) -> None:
        self._ranks = ranks
        self.work = [np.flatnonzero(one.ends == NONE) for one in ranks]
        """Of each rank, which of its GPU rows."""

    def nodes(self, position: int) -> Ints:
        """Nodes of a rank's work."""
        return self._ranks[position].starts[self.work[position]]

    def rows(self, position: int) -> Ints:
        """Rows of `activity.gpu` of a rank's work."""
        return self._ranks[position].rows[self.work[position]]

    def columns(self, position: int, others: Sequence[int], duration: Ints) -> list[Ints]:
        """Of each work of a rank what each of the others takes for the same, ns.

        Args:
            position: whose work.
            others: positions.
            duration: of all nodes of the graph, ns.
        """
        own = duration[self.nodes(position)]
        return [self._column(position, other, own, duration) for other in others]

    def _column(self, position: int, other: int, own: Ints, duration: Ints) -> Ints:
        ids, others = self._ids[position], self._ids[other]
        times = duration[self.nodes(other)]
        at = places(ids, others)
        found = np.append(times, NONE)[at]
        alone, left = at == NONE, places(others, ids) == NONE
        steps, its_steps = self._steps[position], self._steps[other]
        for step in distinct(steps[alone]).tolist():
            mine = alone & (steps == step)
            more = int(own[mine].sum())
            its = int(times[left & (its_steps == step)].sum())
            found[mine] = np.rint(own[mine] * (min(1.0, its / more) if more else 1.0))
        return ints(found)

    @cached_property
    def _steps(self) -> list[Ints]:
        found = []
        for position, one in enumerate(self._ranks):
            timeline = one.timeline
            found.append(timeline.window.step_index(timeline.launches.time[self.rows(position)]))
        return found

    @cached_property
    def _ids(self) -> list[Ints]:
        names: dict[str, int] = {}
        found = []
        for position, one in enumerate(self._ranks):
            activity = one.timeline.activity
            code = activity.gpu.name[self.rows(position)]
            # Codes of names differ from trace to trace.
            common = np.zeros(len(activity.names), dtype=np.int64)
            for each in distinct(code).tolist():
                common[each] = names.setdefault(activity.names[each], len(names))
            key = common[code] * (1 << 20) + self._steps[position] + 1
            found.append(ints(key * (1 << 22) + occurrence(key)))
        return found
