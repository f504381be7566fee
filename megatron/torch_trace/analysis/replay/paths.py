# SPDX-License-Identifier: Apache-2.0
"""The paths of a simulated iteration: the critical one, and another that is about as long.

    critical   |--------- rank 2 ---------|-- all-reduce --|
    other      |-------- rank 0 -------|  |-- all-reduce --|      by so much it is shorter

The other path is the critical one if what holds up most of the first takes no time at all: the CPU
of one rank, its GPU, or communication. Which of two such paths an iteration runs along is luck.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from megatron.torch_trace.analysis.replay.effects.adjustment import Adjustment
from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph
from megatron.torch_trace.analysis.replay.path.critical_path import KINDS, Stretches, critical_path
from megatron.torch_trace.analysis.replay.path.pieces import PathPiece, pieces_of
from megatron.torch_trace.analysis.replay.simulated import Evaluated
from megatron.torch_trace.columns.codes import Codes
from megatron.torch_trace.columns.intervals import Ints, ints


class Paths:
    """Paths of one step.

    Args:
        found: the graph.
        result: times of its nodes.
        step: which; None for the one that is closest to the mean.
    """

    def __init__(self, found: KernelGraph, result: Evaluated, step: int | None = None) -> None:
        self.found, self.result = found, result
        self.common = min(len(steps) for steps in result.steps)
        self.step = self._middle() if step is None else step
        times = result.times
        self.begin = min(int(times[one.marks[self.step]]) for one in found.ranks)
        after = self.step + 1
        ends = [int(one.marks[after]) for one in found.ranks if after < len(one.marks)]
        # The work of a rank that has recorded more steps than others is of its own last one.
        for one in found.ranks:
            if after == len(one.marks) - 1:
                ends += one.last_work.tolist()
        self.last = max(ends, key=self._finish)

    def critical(self) -> tuple[PathPiece, ...]:
        """The critical path, to the rank that ends last."""
        return pieces_of(self.found, self._stretches())

    def other(
        self, within: int, evaluated: Callable[[Adjustment], Evaluated]
    ) -> tuple[tuple[PathPiece, ...], int]:
        """Another one, and by how much it is shorter, ns; none if that is more than `within`.

        Args:
            within: see above.
            evaluated: what gives the times of an adjusted graph.
        """
        stretches = self._stretches()
        if not len(stretches):
            return (), 0
        holder, known = _holders(stretches), Codes()
        of = known.of(holder.tolist())
        time = np.zeros(len(known), dtype=np.int64)
        np.add.at(time, of, stretches.length)
        # Of several the one that comes first on the path.
        most, longest = list(known)[int(time.argmax())], int(time.max())
        held = stretches.node[holder == most]
        changed = self.result.changed
        duration = changed.duration.copy()
        duration[held] = 0
        without = Paths(self.found, evaluated(replace(changed, duration=duration)), self.step)
        shorter = self._finish(self.last) - without._finish(without.last)
        found = without._stretches()
        same = int(found.length[_holders(found) == most].sum())
        if shorter > within or 2 * same > longest:
            return (), 0
        return pieces_of(self.found, found), shorter

    def _stretches(self) -> Stretches:
        return critical_path(
            self.found.graph,
            self.result.changed,
            self.result.times,
            self.last,
            self.begin,
            self._runs(self.last),
        )

    def _middle(self) -> int:
        steps = self.result.steps
        lengths = [float(np.mean([one[n] for one in steps])) for n in range(self.common)]
        return int(np.argmin(np.abs(np.array(lengths) - np.mean(lengths))))

    def _finish(self, node: int) -> int:
        return int(self.result.times[node]) + self._runs(node)

    def _runs(self, node: int) -> int:
        """How long GPU work goes on after its node; a point's own time is the next step's."""
        is_last = any(node in one.last_work for one in self.found.ranks)
        return int(self.result.changed.duration[node]) if is_last else 0


def _holders(stretches: Stretches) -> Ints:
    """A number for the rank and kind of each stretch."""
    return ints(stretches.rank * len(KINDS) + stretches.kind)
