# SPDX-License-Identifier: Apache-2.0
"""The graph of spans as a whole: the recorded iteration, its path, and what changes would give."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from megatron.torch_trace.analysis.communication.rank_calls import RankCalls
from megatron.torch_trace.analysis.replay.answers import (
    RankSlack,
    Slack,
    SpanSlack,
    middle_slack,
)
from megatron.torch_trace.analysis.replay.change import (
    Change,
    StagesBalanced,
    VirtualStages,
)
from megatron.torch_trace.analysis.replay.gain_error import GainError, of_steps
from megatron.torch_trace.analysis.replay.spans.alterations import altered
from megatron.torch_trace.analysis.replay.spans.measured_passes import passes_of
from megatron.torch_trace.analysis.replay.spans.orders import Pass, Shape
from megatron.torch_trace.analysis.replay.spans.passes import Passes
from megatron.torch_trace.analysis.replay.spans.recorded_steps import recording_of
from megatron.torch_trace.analysis.replay.spans.simulation import (
    Piece,
    Simulation,
    pass_slack,
    pass_times,
    path_of,
    simulate,
)
from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.columns.intervals import ints

_NAMES = {"start": "start of the step", "end": "gradient reduction and optimizer"}


@dataclass(frozen=True, slots=True)
class SpanPiece:
    """A part of the critical path, on the lowest rank of a stage; see `answers.PathPiece`."""

    rank: int
    kind: str
    name: str
    time_ns: int


@dataclass(frozen=True, slots=True)
class SpanSimulated:
    """An iteration after changes; see `answers.Simulated`.

    Args:
        iteration_ns: the mean over steps.
        error: what the replay misses without a change, in an iteration of this length; after a
            change also the spread over steps and of the passes, since other ones come together.
        critical_path: of the copy of the model that ends last.
        microbatches: of the iteration.
    """

    iteration_ns: int
    error: GainError
    critical_path: tuple[SpanPiece, ...]
    microbatches: int

    @property
    def error_ns(self) -> int:
        """All parts of the error together."""
        return self.error.total


@dataclass(frozen=True)
class SpanReplay:
    """The recorded passes and their simulation.

    Args:
        passes: as recorded.
    """

    passes: Passes

    @classmethod
    def of(cls, ranks: Iterable[tuple[RankResult, RankCalls]]) -> SpanReplay:
        """The graph of all ranks.

        Raises:
            UnreplayableError: the traces do not hold what it needs.
        """
        return cls(passes_of(recording_of(ranks)))

    @cached_property
    def strict(self) -> Simulation:
        """The iteration without a change."""
        return simulate(self.passes)

    @property
    def shape(self) -> Shape:
        """Of the recorded pipeline."""
        return self.passes.shape

    @property
    def recorded_microbatches(self) -> int:
        """Of an iteration as recorded."""
        return self.shape.microbatches

    @property
    def steps(self) -> int:
        """How many were recorded."""
        return len(self.passes.recorded)

    @property
    def recorded_ns(self) -> int:
        """The recorded iteration: the mean over steps."""
        return round(float(self.passes.recorded.mean()))

    @property
    def simulated_ns(self) -> int:
        """The same as the graph has it."""
        return self.strict.iteration_ns

    @property
    def error_ns(self) -> int:
        """The most that the graph misses a recorded step by."""
        return round(float(abs(self.strict.steps - self.passes.recorded).max()))

    def simulate(self, changes: Sequence[Change]) -> SpanSimulated:
        """The iteration after changes.

        Raises:
            UsageError: a change is of what the recording does not have, or cannot be known.
        """
        passes = altered(self.passes, changes)
        simulation = simulate(passes) if changes else self.strict
        grown = max(1.0, simulation.iteration_ns / max(1, self.simulated_ns))
        error = GainError(self.error_ns * grown)
        if changes:
            more = passes.shape.microbatches / self.shape.microbatches
            gains = self.strict.steps * more - simulation.steps
            error = replace(error, steps=of_steps(gains.tolist()), passes=_luck(passes))
        return SpanSimulated(
            simulation.iteration_ns,
            error,
            self._path(simulation),
            passes.shape.microbatches,
        )

    def iteration_ns(self, changes: Sequence[Change]) -> int:
        """The same without the path and the error."""
        return simulate(altered(self.passes, changes)).iteration_ns

    def slack(self) -> Slack:
        """Of ranks and of passes: by how much each could be later; of several steps the least."""
        ranks: dict[int, int] = {}
        spans: dict[tuple[int, str], int] = {}
        free = np.rint(np.maximum(pass_slack(self.strict), 0.0)).astype(np.int64)
        took = np.rint(pass_times(self.strict)).astype(np.int64)
        stage = np.array([one.stage for one in self.strict.plan.passes])
        for lane, stages in enumerate(self.passes.ranks):
            for number, there in enumerate(stages):
                mine = stage == number
                middle = middle_slack(ints(free[mine, lane]), ints(took[mine, lane]))
                for rank in there:
                    ranks[rank] = min(ranks.get(rank, middle), middle)
            for one, ns in zip(self.strict.plan.passes, free[:, lane].tolist(), strict=True):
                for rank in stages[one.stage]:
                    key = rank, _name(one)
                    spans[key] = min(spans.get(key, ns), ns)
        return Slack(
            tuple(RankSlack(rank, ns) for rank, ns in sorted(ranks.items())),
            tuple(SpanSlack(rank, None, name, ns) for (rank, name), ns in spans.items()),
        )

    def candidates(self) -> list[Change]:
        """Changes that may be worth asking for."""
        shape = self.shape
        if shape.stages == 1:
            return []
        found: list[Change] = [StagesBalanced()]
        layers = self.passes.layers
        chunks = 2 * shape.chunks
        divides = layers is not None and all(count % chunks == 0 for count in layers)
        if divides and not shape.microbatches % shape.stages:
            found.append(VirtualStages(chunks))
        return found

    def _path(self, simulation: Simulation) -> tuple[SpanPiece, ...]:
        lane = int(simulation.ends().argmax())
        pieces = path_of(simulation, lane)
        return tuple(
            SpanPiece(self._rank(lane, piece.stage), *_named(piece), round(piece.time))
            for piece in pieces
        )

    def _rank(self, lane: int, stage: int) -> int:
        recorded = self.passes.ranks[lane][stage]
        if recorded:
            return recorded[0]
        return next(one[stage][0] for one in self.passes.ranks if one[stage])


def _luck(passes: Passes) -> float:
    """Standard deviation of the time of the busiest stage, if its passes were drawn again."""
    each = np.maximum(passes.cpu, passes.gpu).sum(axis=(2, 3))
    busiest = int(each.mean(axis=(0, 2)).argmax())
    return float(each[:, busiest].std(axis=1).mean()) * math.sqrt(passes.shape.microbatches)


def _named(piece: Piece) -> tuple[str, str]:
    if piece.one is None:
        return "cpu", _NAMES[piece.kind]
    name = _name(piece.one)
    if piece.kind == "transfer":
        return "communication", f"transfer to {name}"
    return piece.kind, name


def _name(one: Pass) -> str:
    direction = "forward" if one.is_forward else "backward"
    return f"{direction} micro-batch {one.microbatch}" + (
        f" chunk {one.chunk}" if one.chunk else ""
    )
