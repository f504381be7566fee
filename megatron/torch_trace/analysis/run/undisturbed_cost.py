# SPDX-License-Identifier: Apache-2.0
"""What recording an operator costs, fitted to the run's own undisturbed iterations.

One cost for each recorded operator, so that the graph without it takes as long as training does
without the profiler. Never a factor: that would shorten sleeps and garbage collections too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatron.torch_trace.analysis.replay.answers import Graph
from megatron.torch_trace.analysis.replay.change import Change, RecordingCost

_MOST_COST_NS = 1_000_000.0
_FIRST_NS = 4_000.0
_ROUNDS = 12
_CLOSE = 0.002
_FITS = 0.01


@dataclass(frozen=True, slots=True)
class Calibration:
    """The cost of one recorded operator, ns, and the iteration without it, before any change."""

    cost: RecordingCost
    before_ns: int

    def iteration_ns(self, graph: Graph, changes: Sequence[Change]) -> int:
        """An iteration without the profiler, after changes."""
        return graph.iteration_ns([*changes, self.cost])


def calibration_of(graph: Graph, undisturbed_ns: float | None) -> Calibration | None:
    """Fit it; None where nothing tells the undisturbed iteration, or no cost explains it.

    Args:
        graph: which tells an iteration for a cost of recording.
        undisturbed_ns: an iteration without the profiler, ns; None if unknown.

    Source: docs/computed.md, "Gains and slack".
    """
    if undisturbed_ns is None or not getattr(graph, "takes_recording_cost", False):
        return None

    def simulated(cost: float) -> int:
        return graph.iteration_ns([RecordingCost(cost)])

    if undisturbed_ns >= simulated(0.0):
        free = simulated(0.0)
        return Calibration(RecordingCost(0.0), free) if _near(free, undisturbed_ns) else None
    low, high = 0.0, _FIRST_NS
    above, below = simulated(low), simulated(high)
    while below > undisturbed_ns:
        low, high, above = high, 2 * high, below
        if high > _MOST_COST_NS:
            return None
        below = simulated(high)
    for _ in range(_ROUNDS):
        if above - below <= 0:
            break
        # Between two costs the iteration is nearly a straight line.
        cost = low + (high - low) * (above - undisturbed_ns) / (above - below)
        found = simulated(cost)
        if abs(found - undisturbed_ns) <= _CLOSE * undisturbed_ns:
            return Calibration(RecordingCost(cost), found)
        if found > undisturbed_ns:
            low, above = cost, found
        else:
            high, below = cost, found
    return None


def _near(simulated: float, undisturbed_ns: float) -> bool:
    return abs(simulated - undisturbed_ns) <= _FITS * undisturbed_ns
