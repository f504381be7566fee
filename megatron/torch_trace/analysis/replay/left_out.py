# SPDX-License-Identifier: Apache-2.0
"""The iteration with the luck of one rank taken out: its CPU takes as long as that of its peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from megatron.torch_trace.analysis.replay.effects.adjustment import Adjustment
from megatron.torch_trace.analysis.replay.gain_error import jackknife
from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph
from megatron.torch_trace.analysis.replay.kernels.peer_segments import median_of, segments_of
from megatron.torch_trace.columns.intervals import Ints, ints

MOST_RANKS = 8
"""Of more ranks those are left out whose CPU works longest: which of them is last is the luck."""


class LeftOut:
    """Each rank left out, one after the other.

    Args:
        found: the graph.
        recorded: without a change.
        iteration_ns: of an adjusted graph with other durations.
    """

    def __init__(
        self,
        found: KernelGraph,
        recorded: Adjustment,
        iteration_ns: Callable[[Adjustment, Ints], float],
    ) -> None:
        self._found = found
        self._recorded = recorded
        self._iteration_ns = iteration_ns
        self._before: dict[tuple[int, frozenset[int], frozenset[str]], float] = {}

    def error(self, changed: Adjustment, gain: float) -> float | None:
        """The jackknife's standard error of a gain; None where ranks have no peers."""
        possible = self._possible(changed.mended)
        if not possible and changed.mended:
            return self._only_peer(changed)
        chosen = possible[:MOST_RANKS]
        gains = [
            self._recorded_without(position, changed)
            - self._iteration_ns(changed, self._without(position, changed))
            for position in chosen
        ]
        return jackknife(gain, gains, len(possible) - len(chosen))

    def _only_peer(self, changed: Adjustment) -> float | None:
        """Of two ranks of which one is mended, by how much the other one is later than that one.

        It is the next that all wait for, and by how much may be the luck of these steps.
        """
        after = self._iteration_ns(changed, changed.duration)
        later = [
            abs(after - self._iteration_ns(changed, self._without(position, changed, frozenset())))
            for position, one in enumerate(self._found.ranks)
            if one.rank not in changed.mended and self._found.peers.peers(position)
        ]
        return max(later, default=None)

    def _possible(self, mended: frozenset[int]) -> list[int]:
        """Ranks that have peers, of the longest CPU time first."""
        duration, ranks = self._found.graph.nodes.duration, self._found.ranks
        there = [
            position
            for position, one in enumerate(ranks)
            if one.rank not in mended and self._found.peers.peers(position, mended)
        ]
        return sorted(there, key=lambda at: (-int(duration[segments_of(ranks[at])].sum()), at))

    def _recorded_without(self, position: int, changed: Adjustment) -> float:
        key = position, changed.mended, frozenset(changed.waits)
        if key not in self._before:
            waits = ints(sum(changed.waits.values())) if changed.waits else None
            recorded = replace(self._recorded, still=waits)
            duration = self._without(position, recorded, changed.mended)
            self._before[key] = self._iteration_ns(recorded, duration)
        return self._before[key]

    def _without(
        self, position: int, changed: Adjustment, mended: frozenset[int] | None = None
    ) -> Ints:
        """Durations of which one rank's are its peers', ns; its recorded waits stay its own.

        A wait for storage is no luck of the rank's CPU. The trace tells how long it is, and whether
        it is in every step is the error's part of the steps.
        """
        peers = self._found.peers
        others = peers.peers(position, changed.mended if mended is None else mended)
        here = segments_of(self._found.ranks[position])
        duration, waits = changed.duration.copy(), changed.still
        works = duration if waits is None else ints(np.maximum(duration - waits, 0))
        columns = peers.columns(position, others, works)
        duration[here] = median_of(columns, np.asarray(works[here]))
        if waits is not None:
            duration[here] += waits[here]
        return duration
