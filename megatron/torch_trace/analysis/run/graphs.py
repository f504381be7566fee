# SPDX-License-Identifier: Apache-2.0
"""The two graphs of a recording, each made when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

from megatron.torch_trace.analysis.replay.answers import (
    Graph,
    PathPiece,
    Simulated,
    Slack,
    UnreplayableError,
)
from megatron.torch_trace.analysis.replay.change import (
    Change,
    GpuAsMedian,
    RankAsMedian,
    StagesBalanced,
    VirtualStages,
)
from megatron.torch_trace.analysis.replay.early_replay import EarlyReplay
from megatron.torch_trace.analysis.replay.effects.change_effects import adjusted
from megatron.torch_trace.analysis.replay.recorded_ranks import (
    MOST_RANKS,
    nothing_can_be_replayed,
    replayable,
)
from megatron.torch_trace.analysis.replay.replay import Replay
from megatron.torch_trace.analysis.run.rank_pool import raw_bytes
from megatron.torch_trace.analysis.run.recorded import Recorded
from megatron.torch_trace.analysis.run.undisturbed_cost import Calibration, calibration_of
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.system.memory import host_memory

if TYPE_CHECKING:
    from megatron.torch_trace.analysis.replay.simulated_times import SimulatedTimes
    from megatron.torch_trace.analysis.replay.spans.span_replay import SpanReplay

_KEPT_PER_RAW_BYTE = 0.5
KERNELS, SPANS = "kernels", "spans"


ONE_STEP = (
    "Only one step is recorded, so the errors come from differences between ranks and not between "
    "steps. Record three steps or more."
)


class KernelAnswers:
    """The graph of kernels, which tells a change's error apart from its own.

    Args:
        replay: the graph.
    """

    takes_recording_cost = True

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.recorded_ns = replay.recorded_ns
        self.simulated_ns = replay.simulated_ns
        self.error_ns = replay.error_ns

    def simulate(self, changes: Sequence[Change], *, with_path: bool = True) -> Simulated:
        """The iteration after changes; see `Replay`."""
        return self.replay.simulate(changes, with_path=with_path)

    @property
    def steps(self) -> int:
        """How many were recorded."""
        return self.replay.steps

    def iteration_ns(self, changes: Sequence[Change]) -> int:
        """The same without the path and the error."""
        return self.replay.simulate(changes, with_path=False, with_error=False).iteration_ns

    def times(self, changes: Sequence[Change]) -> tuple[SimulatedTimes, ...]:
        """When everything of each rank happens after changes."""
        from megatron.torch_trace.analysis.replay.simulated_times import simulated_times

        found = self.replay.found
        result = self.replay.evaluated(adjusted(found, changes))
        changed, freed = result.changed, result.changed.freed(found)
        return tuple(
            simulated_times(rank, result.times, changed.duration, freed) for rank in found.ranks
        )


class Graphs:
    """The graph of kernels and the graph of spans of the same ranks.

    Args:
        known: the ranks.
        on_read: called with each trace that the graph of kernels has read.
        early: the graph of kernels, perhaps begun.
    """

    def __init__(
        self,
        known: Recorded,
        on_read: Callable[[Path], None] | None = None,
        *,
        early: EarlyReplay | None = None,
    ) -> None:
        self._known = known
        self._early = early or EarlyReplay()
        self._on_read = on_read
        self._spans: SpanReplay | TorchTraceError | None = None
        self._kernels: KernelAnswers | TorchTraceError | None = None
        self._calibrations: dict[int, Calibration | None] = {}

    def spans(self) -> SpanReplay:
        """The graph of spans.

        Raises:
            UnreplayableError: the traces do not hold what it needs.
        """
        if self._spans is None:
            # Imported here: most recordings are answered by kernels alone.
            from megatron.torch_trace.analysis.replay.spans.span_replay import SpanReplay

            outcomes = self._known.by_rank.values()
            try:
                self._spans = SpanReplay.of([(one.result, one.calls) for one in outcomes])
            except UnreplayableError as error:
                self._spans = error
        if isinstance(self._spans, TorchTraceError):
            raise self._spans
        return self._spans

    def kernels(self, changes: Sequence[Change] = ()) -> KernelAnswers:
        """The graph of kernels.

        Args:
            changes: what it is wanted for: of many ranks it has those that are named there.

        Raises:
            UnreplayableError: the traces do not hold what it needs.
        """
        if self._kernels is None:
            try:
                self._kernels = self._read(changes)
            except (UsageError, UnreplayableError) as error:
                self._kernels = UnreplayableError(str(error))
        if isinstance(self._kernels, TorchTraceError):
            raise self._kernels
        return self._kernels

    def _read(self, changes: Sequence[Change]) -> KernelAnswers:
        files = {rank: Path(one.result.file) for rank, one in self._known.by_rank.items()}
        there = {rank: file for rank, file in files.items() if file.is_file()}
        if not there:
            raise UnreplayableError(
                "the graph of kernels needs the traces themselves, and only kept analyses are here."
            )
        read = self._known.timelines
        if len(there) <= MOST_RANKS and all(file in read for file in there.values()):
            return KernelAnswers(self._of_timelines(there))
        wanted = [one.rank for one in changes if isinstance(one, (RankAsMedian, GpuAsMedian))]
        return KernelAnswers(Replay.of(there.values(), progress=self._on_read, ranks=wanted))

    def _of_timelines(self, files: Mapping[int, Path]) -> Replay:
        found: dict[int, Timeline] = {}
        reasons = []
        for rank, file in files.items():
            timeline = replayable(self._known.timelines[file])
            if isinstance(timeline, str):
                reasons.append((timeline, file))
            else:
                found[rank] = timeline
        if not found:
            raise UnreplayableError(nothing_can_be_replayed(reasons))
        return self._early.of(found)

    def calibration_of(self, graph: Graph) -> Calibration | None:
        """What takes the profiler's cost out of a graph; None where that cannot be told."""
        if id(graph) not in self._calibrations:
            self._calibrations[id(graph)] = calibration_of(graph, self.undisturbed_ns)
        return self._calibrations[id(graph)]

    @cached_property
    def undisturbed_ns(self) -> float | None:
        """The iteration without the profiler, the mean over ranks; None if it is unknown."""
        found = [one.result.undisturbed.median_ns for one in self._known.by_rank.values()]
        known = [one for one in found if one is not None]
        return fmean(known) if known else None

    def best(self) -> tuple[str, Graph]:
        """The graph that shows most of the recorded iteration.

        Raises:
            UnreplayableError: neither can be made; the sentence is the graph of kernels'.
        """
        try:
            return KERNELS, self.kernels()
        except UnreplayableError as error:
            try:
                return SPANS, self.spans()
            except UnreplayableError:
                raise error from None

    def for_changes(self, changes: Sequence[Change]) -> tuple[str, Graph]:
        """Name and graph that answer these changes; without changes the best one.

        Raises:
            UnreplayableError: the traces do not hold what it needs.
        """
        if not changes:
            return self.best()
        try:
            if any(one.of_spans for one in changes):
                return SPANS, self.spans()
            return KERNELS, self.kernels(changes)
        except UnreplayableError as error:
            raise UnreplayableError(f"{changes[0].text}: {error}") from error

    def proposals(self) -> list[tuple[Change, str | None]]:
        """Changes that may be worth it, with the finding that each is about."""
        found: list[Change] = []
        with suppress(UnreplayableError):
            found += self.kernels().replay.candidates()
        with suppress(UnreplayableError):
            found += self.spans().candidates()
        return [(one, _finding(one)) for one in found]

    def ranks_of(self, name: str) -> Sequence[int]:
        """The ranks in a graph."""
        return self.kernels().replay.ranks if name == KERNELS else list(self._known.by_rank)

    def inferred_edges(self, name: str) -> int:
        """Dependencies of a graph that the traces do not tell."""
        return sum(self.kernels().replay.inferred_edges.values()) if name == KERNELS else 0

    def absent_calls(self, name: str) -> int:
        """Kernels of collectives in a graph with a rank that has no trace."""
        return self.kernels().replay.absent_calls if name == KERNELS else 0

    def slack(self, name: str) -> Slack:
        """Of ranks, spans and collectives, by one of the graphs."""
        return self.spans().slack() if name == SPANS else self.kernels().replay.slack()

    def other_path(self, name: str, changes: Sequence[Change]) -> tuple[Sequence[PathPiece], int]:
        """A path within the error of the critical one, and by how much it is shorter, ns."""
        return ((), 0) if name == SPANS else self.kernels().replay.other_path(changes)

    @cached_property
    def spread(self) -> float | None:
        """The part by which iterations without the profiler differ; None if that is unknown."""
        found = [one.result.undisturbed.spread for one in self._known.by_rank.values()]
        known = [one for one in found if one is not None]
        return median(known) if known else None

    @property
    def notes(self) -> list[str]:
        """What to know of the graphs that were made, in sentences."""
        both = (self._kernels, self._spans)
        made = [one for one in both if one is not None and not isinstance(one, TorchTraceError)]
        alone = [ONE_STEP] if any(one.steps == 1 for one in made) else []
        return self._absent() + alone

    def _absent(self) -> list[str]:
        if not isinstance(self._kernels, KernelAnswers):
            return []
        shown, there = len(self._kernels.replay.ranks), len(self._known.by_rank)
        if shown == there or there <= MOST_RANKS:
            return []
        return [
            f"The graph of kernels has {shown} of the {there:,} ranks; what the others delay is "
            "not in it."
        ]


def _finding(change: Change) -> str | None:
    if isinstance(change, VirtualStages):
        return "pipeline_bubble"
    return "uneven_stages" if isinstance(change, StagesBalanced) else None


def are_few(traces: Sequence[Path]) -> bool:
    """Whether what is read of these traces may lie in memory all at once."""
    raw = sum(map(raw_bytes, traces))
    return 0 < len(traces) <= MOST_RANKS and raw * _KEPT_PER_RAW_BYTE < host_memory().free / 2
