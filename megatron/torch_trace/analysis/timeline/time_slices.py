# SPDX-License-Identifier: Apache-2.0
"""How a rank's time went over its window, in slices of equal length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.timeline.breakdown import BusySets
from megatron.torch_trace.analysis.timeline.steps import Window
from megatron.torch_trace.columns.intervals import ints

SLICES = 240
"""As many as a figure of a screen's width can show."""


@dataclass(frozen=True, slots=True)
class Course:
    """The breakdown of each slice, in ns; what is left of a slice is idle.

    Args:
        edges_ns: bounds of the slices, one more than there are slices, ns since the trace's base
            time.
        compute, exposed_communication, exposed_memory: for each slice.
    """

    edges_ns: tuple[int, ...]
    compute: tuple[int, ...]
    exposed_communication: tuple[int, ...]
    exposed_memory: tuple[int, ...]


def course_of(sets: BusySets, window: Window) -> Course:
    """The course of a window; its slices add up to the window's breakdown, exactly."""
    count = max(1, min(SLICES, window.length))
    edges = window.start + ints([window.length * n // count for n in range(count + 1)])
    starts, ends = edges[:-1], edges[1:]
    parts = (sets.compute, sets.exposed_communication, sets.exposed_memory)
    rows = np.stack([part.covered(starts, ends) for part in parts])
    return Course(tuple(edges.tolist()), *(tuple(row) for row in rows.tolist()))
