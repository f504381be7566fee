# SPDX-License-Identifier: Apache-2.0
"""Changes that may be worth it, each with what it would give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

from megatron.torch_trace.analysis.findings.remedies import remedies_of
from megatron.torch_trace.analysis.replay.answers import Graph, Simulated, UnreplayableError
from megatron.torch_trace.analysis.replay.change import (
    Change,
    MicroBatches,
    StagesBalanced,
    VirtualStages,
)
from megatron.torch_trace.analysis.replay.gain_error import GainError
from megatron.torch_trace.analysis.replay.path.causes import Cause
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.analysis.run.graphs import Graphs, KernelAnswers
from megatron.torch_trace.errors import UsageError

MOST_ERROR = 0.02
"""A graph that misses the recorded iteration by more predicts nothing."""
_SCHEDULES = (VirtualStages, StagesBalanced)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change and what it would give, ns an iteration.

    Args:
        change: as a user writes it: `--rank 2=median`.
        finding: code of the finding whose cause it takes away; None if there is none.
        iteration_ns: after it.
        gain_ns: by how much shorter; with more micro-batches, by how much for as many tokens.
        error: of the gain, in its parts.
        causes: what took far longer on a rank than on its peers, where the change is about that.
        undisturbed_gain_ns: the gain without the profiler; None where that cannot be told.
        undisturbed_error_ns: of that gain; None like it.
    """

    change: str
    finding: str | None
    iteration_ns: int
    gain_ns: int
    error: GainError
    causes: tuple[Cause, ...] = ()
    undisturbed_gain_ns: int | None = None
    undisturbed_error_ns: int | None = None

    @property
    def error_ns(self) -> int:
        """Of the gain, all parts together."""
        return self.error.total

    @property
    def is_distinguishable(self) -> bool:
        """Whether the gain, or loss, is larger than its error."""
        return abs(self.gain_ns) > self.error_ns


def check(graph: Graph, changes: Sequence[Change]) -> None:
    """Refuse to predict by a graph that misses the recorded iteration.

    Raises:
        UnreplayableError: it does.
    """
    missed = max(graph.error_ns, missed_ns(graph)) / max(1, graph.recorded_ns)
    if changes and missed > MOST_ERROR:
        raise UnreplayableError(
            f"{changes[0].text}: the graph misses the recorded iteration by {100 * missed:.1f} %, "
            f"more than {100 * MOST_ERROR:.0f} %, so it predicts nothing."
        )


def candidates_of(graphs: Graphs, analysis: Analysis) -> list[Candidate]:
    """Remedies of findings, and what the graphs propose; the largest gain first."""
    asked: dict[tuple[Change, ...], str | None] = {}
    for finding in analysis.findings:
        for changes in remedies_of(finding):
            asked.setdefault(changes, finding.code)
    for change, code in graphs.proposals():
        asked.setdefault((change,), code)
    answers = (_answer(graphs, changes, code) for changes, code in asked.items())
    found = [one for one in answers if one is not None]
    return sorted(found, key=lambda one: (-one.gain_ns, one.change))


def remedy_in(graphs: Graphs, finding: Finding) -> Candidate | None:
    """The first remedy of a finding that graphs can answer; None where they can answer none.

    Of a change of the schedule the one that gains most: each takes only a part of a bubble away.
    """
    schedules: list[Candidate] = []
    for changes in remedies_of(finding):
        is_schedule = any(isinstance(one, _SCHEDULES) for one in changes)
        if schedules and not is_schedule:
            break
        found = _answer(graphs, changes, finding.code)
        if found is not None and not is_schedule:
            return found
        if found is not None:
            schedules.append(found)
    return max(schedules, key=lambda one: one.gain_ns, default=None)


def _answer(graphs: Graphs, changes: Sequence[Change], code: str | None) -> Candidate | None:
    """None of another change than the recording can tell of: nobody has asked for it."""
    try:
        _, graph = graphs.for_changes(changes)
        check(graph, changes)
        return candidate_of(graph, changes, code, graphs)
    except (UsageError, UnreplayableError):
        return None


def candidate_of(
    graph: Graph, changes: Sequence[Change], finding: str | None, graphs: Graphs
) -> Candidate:
    """Changes, and what all of them together would give.

    Args:
        graph, changes: which is asked for what.
        finding: code of the finding whose remedy they are.
        graphs: of the run.
    """
    simulated = _without_path(graph, changes)
    fewer = 1.0 / times_the_tokens(graph, changes)
    gain = round(graph.simulated_ns - simulated.iteration_ns * fewer)
    error = simulated.error.at_least(missed_ns(graph)).times(fewer)
    told = error.of_run(gain, graphs.spread)
    undisturbed, its_error = _undisturbed(graph, changes, graphs, gain, told.total)
    return Candidate(
        change=" ".join(one.text for one in changes),
        finding=finding,
        iteration_ns=simulated.iteration_ns,
        gain_ns=gain,
        error=told,
        causes=getattr(simulated, "causes", ()),
        undisturbed_gain_ns=undisturbed,
        undisturbed_error_ns=its_error,
    )


def _undisturbed(
    graph: Graph, changes: Sequence[Change], graphs: Graphs, gain_ns: int, error_ns: int
) -> tuple[int | None, int | None]:
    """The gain without the profiler and its error, ns; None where that cannot be told.

    The error is that of the gain in proportion, and half of what the gain differs by from one in
    proportion: how the profiler's cost is spread over an iteration is fitted, not measured.

    Source: docs/computed.md, "Gains and slack".
    """
    calibration = graphs.calibration_of(graph)
    if calibration is None:
        return None, None
    part = calibration.before_ns / max(1, graph.simulated_ns)
    undisturbed = calibration.before_ns - calibration.iteration_ns(graph, changes)
    apart = abs(undisturbed - part * gain_ns) / 2
    return undisturbed, round(hypot(part * error_ns, apart))


def _without_path(graph: Graph, changes: Sequence[Change]) -> Simulated:
    """The path takes longer than the time, and of a candidate nobody looks at it."""
    if isinstance(graph, KernelAnswers):
        return graph.simulate(changes, with_path=False)
    return graph.simulate(changes)


def missed_ns(graph: Graph) -> int:
    """By how much the graph misses the recorded iteration, ns."""
    return abs(graph.simulated_ns - graph.recorded_ns)


def times_the_tokens(graph: Graph, changes: Sequence[Change]) -> float:
    """How many times as many tokens an iteration has after changes."""
    counts = [one.count for one in changes if isinstance(one, MicroBatches)]
    recorded_count = getattr(graph, "recorded_microbatches", None)
    return counts[-1] / recorded_count if counts and recorded_count else 1.0
