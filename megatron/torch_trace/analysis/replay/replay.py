# SPDX-License-Identifier: Apache-2.0
"""An iteration replayed: as recorded, and with changes.

replay = Replay.of(["torch_profile/20261127-221810/iter-0000003"])
replay.simulate([RankAsMedian(2)]).iteration_ns
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from megatron.torch_trace.analysis.replay.answers import Slack
from megatron.torch_trace.analysis.replay.candidates import candidates
from megatron.torch_trace.analysis.replay.change import Change
from megatron.torch_trace.analysis.replay.effects.adjustment import Adjustment
from megatron.torch_trace.analysis.replay.effects.change_effects import adjusted
from megatron.torch_trace.analysis.replay.gain_error import GainError, of_steps
from megatron.torch_trace.analysis.replay.kernels.graph import EDGE_KINDS
from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph, kernel_graph
from megatron.torch_trace.analysis.replay.kernels.longest_path import LongestPaths
from megatron.torch_trace.analysis.replay.left_out import LeftOut
from megatron.torch_trace.analysis.replay.path.causes import causes_of
from megatron.torch_trace.analysis.replay.path.pieces import PathPiece as PathPiece
from megatron.torch_trace.analysis.replay.path.slack import node_slack, slack_of
from megatron.torch_trace.analysis.replay.paths import Paths
from megatron.torch_trace.analysis.replay.recorded_ranks import read_ranks
from megatron.torch_trace.analysis.replay.simulated import Evaluated
from megatron.torch_trace.analysis.replay.simulated import Simulated as Simulated
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints, ints

_ALIKE = 0.01
"""Of the iteration: paths that differ by less are as long, whatever else is known."""


class Replay:
    """Up to 16 ranks of one window as a graph.

    Args:
        timelines: by rank; each with steps and GPU work.
    """

    def __init__(self, timelines: Mapping[int, Timeline]) -> None:
        self.found: KernelGraph = kernel_graph(timelines)
        self._paths = LongestPaths.of(self.found.graph)
        self._rewired: tuple[Adjustment, LongestPaths] | None = None
        self._strict = self.evaluated(Adjustment.none(self.found))
        self._usual = self.evaluated(Adjustment.none(self.found), usual=True)
        self._left_out = LeftOut(self.found, self._strict.changed, self._iteration_with)

    @classmethod
    def of(
        cls,
        paths: Iterable[Path | str] | Path | str,
        progress: Callable[[Path], None] | None = None,
        *,
        ranks: Iterable[int] = (),
    ) -> Replay:
        """Read traces.

        Args:
            paths: traces or folders of them, of one window.
            progress: called with each trace once it is read.
            ranks: must be among the 16 that are read of more.

        Raises:
            UsageError: nothing can be replayed; the sentence says what is missing.
        """
        several = [paths] if isinstance(paths, (str, Path)) else list(paths)
        return cls(read_ranks(several, wanted=ranks, progress=progress))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Whose traces are in the graph."""
        return tuple(one.rank for one in self.found.ranks)

    @cached_property
    def recorded_ns(self) -> int:
        """The iteration as recorded: mean over ranks and steps, as `analyze` has it."""
        steps = [
            step.end - step.start for one in self.found.ranks for step in one.timeline.window.steps
        ]
        return round(float(np.mean(steps)))

    @property
    def simulated_ns(self) -> int:
        """The iteration replayed without a change."""
        return self._strict.iteration_ns

    @property
    def error_ns(self) -> int:
        """By how much the replay misses the recorded iteration.

        With the recorded latencies, or, where that is more, with the usual ones: an iteration that
        was not recorded has these.
        """
        missed = (self._strict.iteration_ns, self._usual.iteration_ns)
        return max(abs(one - self.recorded_ns) for one in missed)

    @property
    def steps(self) -> int:
        """How many every rank has."""
        return min(len(one.timeline.window.steps) for one in self.found.ranks)

    @property
    def inferred_edges(self) -> dict[str, int]:
        """Dependencies that no event tells, by kind."""
        edges = self.found.graph.edges
        kinds = np.bincount(edges.kind[edges.inferred], minlength=len(EDGE_KINDS)).tolist()
        return {name: count for name, count in zip(EDGE_KINDS, kinds, strict=True) if count}

    @property
    def absent_calls(self) -> int:
        """Kernels of collectives in which a rank took part that has no trace here.

        They keep what they waited for it, and less communication gains less than is told.
        """
        return self.found.joined.missing

    def simulate(
        self, changes: Sequence[Change], *, with_path: bool = True, with_error: bool = True
    ) -> Simulated:
        """The iteration after changes.

        Args:
            changes: made one after the other.
            with_path: find the critical path too, which takes longer than the time.
            with_error: find out how much of the gain is luck too; else only the graph's own error.

        Raises:
            UsageError: a change is about what the traces do not hold.
        """
        changed = adjusted(self.found, changes)
        result = self.evaluated(changed)
        return Simulated(
            iteration_ns=result.iteration_ns,
            error=self._error(changed, result) if with_error else GainError(self.error_ns),
            critical_path=Paths(self.found, result).critical() if with_path else (),
            causes=causes_of(self.found, changed.excess, changed.late_work),
        )

    def critical_path(self) -> tuple[PathPiece, ...]:
        """Of the iteration as recorded."""
        return Paths(self.found, self._strict).critical()

    def slack(self) -> Slack:
        """Of ranks, spans and collectives, as recorded."""
        found = self.found
        weights = found.graph.weights(found.graph.nodes.duration, found.graph.edges.lag)
        return slack_of(found, node_slack(found, self._paths, weights, self._strict.times))

    def other_path(self, changes: Sequence[Change] = ()) -> tuple[tuple[PathPiece, ...], int]:
        """Another path that is within the error of the critical one, and by how much shorter."""
        result = self.evaluated(adjusted(self.found, changes))
        lengths = [float(np.mean([one[n] for one in result.steps])) for n in range(self.steps)]
        least = _ALIKE * result.iteration_ns
        within = round(max(float(self.error_ns), of_steps(lengths) or 0.0, least))
        return Paths(self.found, result).other(within, self.evaluated)

    def candidates(self) -> tuple[Change, ...]:
        """Changes worth trying, from what the traces hold."""
        return candidates(self.found)

    def _error(self, changed: Adjustment, result: Evaluated) -> GainError:
        """Of the gain, by what the recording tells."""
        usual = self.evaluated(changed, usual=True)
        gain = self._strict.iteration_ns - result.iteration_ns
        replay = abs(gain - (self._usual.iteration_ns - usual.iteration_ns))
        count = min(len(one) for one in (*result.steps, *self._strict.steps))
        before, after = (
            [float(np.mean([steps[n] for steps in one.steps])) for n in range(count)]
            for one in (self._strict, result)
        )
        ranks = self._left_out.error(changed, gain)
        if changed.variants:
            ranks = math.hypot(ranks or 0.0, self._among_variants(changed, gain))
        return GainError(
            float(max(replay, self.error_ns)),
            of_steps([one - other for one, other in zip(before, after, strict=True)])
            or self._instead_of_steps(changed, gain, ranks),
            ranks,
        )

    def _instead_of_steps(
        self, changed: Adjustment, gain: float, ranks: float | None
    ) -> float | None:
        """Of one step: the part by which ranks differ in what the change takes away from them."""
        if self.steps > 1:
            return 0.0
        nodes = self.found.graph.nodes
        own = nodes.rank >= 0
        taken = np.bincount(nodes.rank[own], weights=np.abs(nodes.duration - changed.duration)[own])
        taken = taken[taken > 0]
        if len(taken) < 2:
            return ranks
        return max(ranks or 0.0, abs(gain) * float(taken.std(ddof=1) / taken.mean()))

    def _among_variants(self, changed: Adjustment, gain: float) -> float:
        """Half of what the iteration differs by between variants of a change that are as likely."""
        if len(changed.variants) == 1:
            # By how much a single peer was lucky itself, nothing tells.
            half = abs(gain) / 2
            far = changed.excess or changed.late_work
            return min(half, changed.luck_ns / self.steps) if far else half
        found = [self._iteration_with(changed, duration) for duration in changed.variants]
        return (max(found) - min(found)) / 2

    def _iteration_with(self, changed: Adjustment, duration: Ints) -> float:
        """The iteration of a changed graph with other durations."""
        paths = self._paths_of(changed)
        times = paths.times(self._weights(changed, duration, changed.lag), self._start)
        return float(np.mean(np.concatenate(self._steps(times, duration))))

    @property
    def _start(self) -> Ints:
        return self.found.graph.nodes.time

    def _weights(self, changed: Adjustment, duration: Ints, lag: Ints) -> Ints:
        return ints(lag + np.where(changed.carries, duration[changed.source], 0))

    def evaluated(self, changed: Adjustment, *, usual: bool = False) -> Evaluated:
        """Times of all nodes after a change, with recorded or with usual latencies."""
        paths = self._paths_of(changed)
        lag = changed.usual if usual else changed.lag
        times = paths.times(self._weights(changed, changed.duration, lag), self._start)
        return Evaluated(changed, paths, times, self._steps(times, changed.duration))

    def _paths_of(self, changed: Adjustment) -> LongestPaths:
        if not changed.rewired:
            return self._paths
        if self._rewired is None or self._rewired[0] is not changed:
            paths = LongestPaths.of(self.found.graph, changed.keep, changed.source)
            self._rewired = changed, paths
        return self._rewired[1]

    def _steps(self, times: Ints, duration: Ints) -> tuple[Ints, ...]:
        """Lengths of the steps of each rank; the last one lasts as long as the GPU works for it."""
        result = []
        for one in self.found.ranks:
            ends = times[one.last_work] + duration[one.last_work]
            end = max(int(times[one.marks[-1]]), int(ends.max(initial=0)))
            result.append(ints(np.diff(np.append(times[one.marks[:-1]], end))))
        return tuple(result)
