# SPDX-License-Identifier: Apache-2.0
"""What a graph answers, of kernels or of spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from megatron.torch_trace.analysis.replay.change import Change
from megatron.torch_trace.analysis.replay.gain_error import GainError
from megatron.torch_trace.errors import TorchTraceError


class UnreplayableError(TorchTraceError):
    """The recording does not hold what a graph needs; the sentence says what, and what would.

    As with every other question that a trace cannot answer, something else has to be asked.
    """

    exit_status = 2


class PathPiece(Protocol):
    """A part of the path that the iteration could not avoid.

    `kind` says what held it up there: `cpu`, `gpu`, `communication`, ...
    """

    @property
    def rank(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def time_ns(self) -> int: ...


class Simulated(Protocol):
    """An iteration after changes."""

    @property
    def iteration_ns(self) -> int: ...
    @property
    def error(self) -> GainError: ...
    @property
    def critical_path(self) -> Sequence[PathPiece]: ...


class Graph(Protocol):
    """What both graphs have in common."""

    @property
    def recorded_ns(self) -> int: ...
    @property
    def simulated_ns(self) -> int: ...
    @property
    def error_ns(self) -> int: ...
    @property
    def steps(self) -> int: ...
    def simulate(self, changes: Sequence[Change]) -> Simulated: ...
    def iteration_ns(self, changes: Sequence[Change]) -> int:
        """The same without path and error, which take longer."""
