# SPDX-License-Identifier: Apache-2.0
"""A simulated iteration, and what a replay says of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.replay.effects.adjustment import Adjustment
from megatron.torch_trace.analysis.replay.gain_error import GainError
from megatron.torch_trace.analysis.replay.kernels.longest_path import LongestPaths
from megatron.torch_trace.analysis.replay.path.causes import Cause
from megatron.torch_trace.analysis.replay.path.pieces import PathPiece
from megatron.torch_trace.columns.intervals import Ints


@dataclass(frozen=True, slots=True)
class Simulated:
    """A simulated iteration.

    Args:
        iteration_ns: mean over ranks and steps.
        error: by how much the gain over the recorded iteration may be wrong.
        critical_path: of the step that is closest to the mean, from begin to end.
        causes: what took far longer on a rank than on its peers, the longest first.
    """

    iteration_ns: int
    error: GainError
    critical_path: tuple[PathPiece, ...]
    causes: tuple[Cause, ...] = ()

    @property
    def error_ns(self) -> int:
        """All parts of the error together."""
        return self.error.total


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Times of all nodes after a change, and the steps of each rank, ns."""

    changed: Adjustment
    paths: LongestPaths
    times: Ints
    steps: tuple[Ints, ...]

    @property
    def iteration_ns(self) -> int:
        return round(float(np.mean(np.concatenate(self.steps))))
