# SPDX-License-Identifier: Apache-2.0
"""What a graph answers, of kernels or of spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from megatron.torch_trace.analysis.replay.change import Change
from megatron.torch_trace.analysis.replay.gain_error import GainError
from megatron.torch_trace.columns.intervals import Ints
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


@dataclass(frozen=True, slots=True)
class RankSlack:
    """By how much half of a rank's work, by time, or more of it could be later; ns."""

    rank: int
    slack_ns: int


@dataclass(frozen=True, slots=True)
class SpanSlack:
    """By how much a span could be later, ns; of several by one name in a step the least.

    Args:
        rank: global rank.
        step: number of the step; None of all, the least of them.
        name: of the span.
        slack_ns: see `RankSlack`.
    """

    rank: int
    step: int | None
    name: str
    slack_ns: int


@dataclass(frozen=True, slots=True)
class CollectiveSlack:
    """By how much a call could end later, ns.

    Args:
        ranks: that it is of.
        step: in which all have come.
        dimension, collective: which it is.
        slack_ns: see `RankSlack`.
    """

    ranks: tuple[int, ...]
    step: int
    dimension: str
    collective: str
    slack_ns: int


@dataclass(frozen=True, slots=True)
class Slack:
    """Of ranks, spans and collectives, these in the order of time."""

    ranks: tuple[RankSlack, ...]
    spans: tuple[SpanSlack, ...] = ()
    collectives: tuple[CollectiveSlack, ...] = ()


def middle_slack(slack: Ints, weights: Ints) -> int:
    """The slack that half of the work, by time, has at least, ns; 0 of nothing.

    Args:
        slack, weights: of each piece of work, ns, both of shape (pieces,).

    Source: docs/computed.md, "Gains and slack".
    """
    works = weights > 0
    if not works.any():
        return 0
    order = np.argsort(slack[works], kind="stable")
    reached = np.cumsum(weights[works][order])
    return max(0, int(slack[works][order][np.searchsorted(reached, reached[-1] / 2)]))


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
