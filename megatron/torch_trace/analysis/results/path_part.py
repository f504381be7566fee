# SPDX-License-Identifier: Apache-2.0
"""A part of the critical path, as an analysis keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_trace.analysis.timeline.moment import Moment


@dataclass(frozen=True, slots=True)
class PathPart:
    """See `torch-trace whatif`.

    Args:
        rank: global rank; of communication the one that goes on after it.
        kind: `cpu`, `compute` or `communication`.
        name: a phase or micro-batch, a collective with its dimension, a family of kernels.
        time_ns: how long the path is in it.
        count: how many times the path comes through it.
        longest: its longest segment, in the trace of the rank; None if there is no work to look at.
    """

    rank: int
    kind: str
    name: str
    time_ns: int
    count: int = 1
    longest: Moment | None = None
