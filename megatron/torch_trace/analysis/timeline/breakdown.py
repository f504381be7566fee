# SPDX-License-Identifier: Apache-2.0
"""Where the time of a window went: compute, exposed communication, exposed copies, idle.

    compute         ####    ####             8
    communication     ######    ##           8, of which exposed 4, overlapped 4
    memory                         ##        2, exposed 2
    window       [----------------------)    22 = 8 + 4 + 2 + idle 8

Every set is a union of intervals of one device, so the four parts add up to the window exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.timeline.steps import Window
from megatron.torch_trace.columns.intervals import Intervals, ints


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Four parts of a window, in ns, which add up to it."""

    compute: int
    exposed_communication: int
    exposed_memory: int
    idle: int

    @property
    def total(self) -> int:
        """The window, ns."""
        return self.compute + self.exposed_communication + self.exposed_memory + self.idle


@dataclass(frozen=True, slots=True)
class BusySets:
    """What the GPU did, clipped to the window.

    Args:
        compute, communication, memory: unions of each class; they overlap each other.
    """

    compute: Intervals
    communication: Intervals
    memory: Intervals

    @property
    def exposed_communication(self) -> Intervals:
        """Communication minus compute."""
        return self.communication.minus(self.compute)

    @property
    def exposed_memory(self) -> Intervals:
        """Copies minus compute minus communication."""
        return self.memory.minus(self.compute.union(self.communication))

    @property
    def busy(self) -> Intervals:
        """All GPU work: the rest of the window is idle."""
        return self.compute.union(self.communication).union(self.memory)


def break_down(sets: BusySets, window: Window) -> tuple[Breakdown, tuple[Breakdown, ...]]:
    """The breakdown of the window, and of each step by the clock.

    Returns:
        (window, steps), in ns; the parts of the steps add up to those of the window.

    Source: docs/computed.md, "Classes of time".
    """
    bounds = [(step.start, step.end) for step in window.steps]
    starts = ints([window.start, *(s for s, _ in bounds)])
    ends = ints([window.end, *(e for _, e in bounds)])
    compute = sets.compute.covered(starts, ends)
    communication = sets.exposed_communication.covered(starts, ends)
    memory = sets.exposed_memory.covered(starts, ends)
    idle = ends - starts - compute - communication - memory
    rows = np.stack((compute, communication, memory, idle), axis=1).tolist()
    whole, *steps = (Breakdown(*row) for row in rows)
    return whole, tuple(steps)
