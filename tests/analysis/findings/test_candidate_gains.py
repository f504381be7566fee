# SPDX-License-Identifier: Apache-2.0
"""What changes would give, by graphs with known answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from megatron.torch_trace.analysis.replay.answers import UnreplayableError
from megatron.torch_trace.analysis.replay.change import (
    Change,
    LaunchScaled,
    MicroBatches,
    Overlapped,
    RankAsMedian,
    RecordingCost,
    StagesBalanced,
    VirtualStages,
    WithoutBarriers,
)
from megatron.torch_trace.analysis.replay.gain_error import GainError
from megatron.torch_trace.analysis.results.analysis import Finding
from megatron.torch_trace.analysis.run.candidates import (
    Candidate,
    candidate_of,
    candidates_of,
    check,
    remedy_in,
)
from megatron.torch_trace.analysis.run.graphs import Graphs
from megatron.torch_trace.analysis.run.undisturbed_cost import Calibration, calibration_of
from megatron.torch_trace.errors import UsageError


@dataclass
class StandIn:
    """A graph of an iteration of 100 us that gains known times; what has none is refused."""

    gains: dict[Change, int] = field(default_factory=dict)
    recorded_ns: int = 100_000
    simulated_ns: int = 100_000
    error_ns: int = 0
    steps: int = 2
    recorded_microbatches: int = 8

    def iteration_ns(self, changes: Sequence[Change]) -> int:
        if not all(one in self.gains for one in changes):
            raise UsageError("not in this recording")
        return self.simulated_ns - sum(self.gains[one] for one in changes)

    def simulate(self, changes: Sequence[Change]) -> Any:
        error = GainError(300.0, steps=400.0)
        return SimpleNamespace(
            iteration_ns=self.iteration_ns(changes), error=error, critical_path=()
        )


@dataclass
class StandIns:
    """Graphs of a run, all of which are one."""

    graph: StandIn
    spread: float | None = None
    calibration: Calibration | None = None
    proposed: Sequence[tuple[Change, str | None]] = ()

    def for_changes(self, changes: Sequence[Change]) -> tuple[str, Any]:
        return "kernels", self.graph

    def calibration_of(self, graph: Any) -> Calibration | None:
        return self.calibration

    def proposals(self) -> list[tuple[Change, str | None]]:
        return list(self.proposed)


LAUNCH = LaunchScaled(0.0)


def candidate(graph: StandIn, *changes: Change, **more: Any) -> Candidate:
    graphs: Any = StandIns(graph, **more)
    return candidate_of(graph, changes, None, graphs)


@pytest.mark.parametrize(
    ("missed", "error", "percent"),
    [(2_000, 0, None), (2_100, 0, "2.1"), (0, 2_600, "2.6"), (-3_000, 0, "3.0")],
)
def test_a_graph_that_misses_the_iteration_by_more_than_2_percent_predicts_nothing(
    missed: int, error: int, percent: str | None
) -> None:
    graph = StandIn(simulated_ns=100_000 + missed, error_ns=error)
    check(graph, [])
    if percent is None:
        check(graph, [LAUNCH])
        return
    with pytest.raises(UnreplayableError) as refused:
        check(graph, [LAUNCH])
    assert str(refused.value) == (
        f"--launch 0: the graph misses the recorded iteration by {percent} %, more than 2 %, so it "
        "predicts nothing."
    )


@pytest.mark.parametrize(("gain", "is_told"), [(501, True), (500, False), (-501, True)])
def test_a_gain_or_loss_is_told_apart_if_it_is_larger_than_its_error(
    gain: int, is_told: bool
) -> None:
    found = candidate(StandIn({LAUNCH: gain}), LAUNCH)
    assert (found.gain_ns, found.error_ns, found.is_distinguishable) == (gain, 500, is_told)


def test_of_twice_the_micro_batches_the_gain_is_for_as_many_tokens() -> None:
    more = MicroBatches(16)
    graph = StandIn({more: -80_000}, simulated_ns=101_000)
    found = candidate(graph, more)
    # 181 us for twice the tokens; the graph misses the recorded iteration by 1 us.
    assert (found.iteration_ns, found.gain_ns) == (181_000, 101_000 - 90_500)
    assert found.error == GainError(500.0, steps=200.0)


def test_the_part_by_which_iterations_differ_is_part_of_the_error() -> None:
    found = candidate(StandIn({LAUNCH: 10_000}), LAUNCH, spread=0.05)
    assert found.error == GainError(300.0, steps=400.0, undisturbed=500.0)


def test_without_the_profiler_the_error_grows_with_what_the_gain_is_out_of_proportion() -> None:
    cost = RecordingCost(2_000.0)
    graph = StandIn({LAUNCH: 10_000, cost: 20_000})
    calibration = Calibration(cost, before_ns=86_000)
    found = candidate(graph, LAUNCH, calibration=calibration)
    # 70 us after both; 86 % of the gain would be 8.6 us, 7.4 less than it is.
    assert found.undisturbed_gain_ns == 86_000 - 70_000
    error = ((0.86 * 500) ** 2 + (7_400 / 2) ** 2) ** 0.5
    assert found.undisturbed_error_ns == round(error)


def finding(code: str, **evidence: object) -> Finding:
    return Finding(code, "low", "", evidence, "")


BUBBLE = finding("pipeline_bubble", microbatches=[8], chunks=1)


@pytest.mark.parametrize(
    ("gains", "change"),
    [
        ({VirtualStages(2): 500, StagesBalanced(): 900}, "--stages balanced"),
        ({VirtualStages(2): 500, MicroBatches(16): 5_000}, "--virtual-stages 2"),
        ({VirtualStages(2): 900, StagesBalanced(): 500}, "--virtual-stages 2"),
        ({MicroBatches(16): 5_000, Overlapped("pp"): 9_000}, "--micro-batches 16"),
        ({Overlapped("pp"): 9_000}, "--overlap pp"),
        ({}, None),
    ],
)  # fmt: skip
def test_of_a_bubble_the_better_schedule_is_told_and_else_the_first_that_can_be_answered(
    gains: dict[Change, int], change: str | None
) -> None:
    graphs: Any = StandIns(StandIn(gains))
    found = remedy_in(graphs, BUBBLE)
    assert (found.change if found else None) == change


def test_candidates_are_by_gain_and_those_of_findings_keep_their_names() -> None:
    gains: dict[Change, int] = {WithoutBarriers(): 10, LAUNCH: 900, RankAsMedian(2): 500}
    proposed = [(RankAsMedian(2), None), (LAUNCH, None), (WithoutBarriers(), "other")]
    graphs: Any = StandIns(StandIn(gains), proposed=[*proposed, (RankAsMedian(9), None)])
    analysis: Any = SimpleNamespace(findings=[finding("barriers"), finding("straggler", rank=2)])
    told = [(one.change, one.finding, one.gain_ns) for one in candidates_of(graphs, analysis)]
    assert told == [
        ("--launch 0", None, 900),
        ("--rank 2=median", "straggler", 500),
        ("--barriers none", "barriers", 10),
    ]


class Costly:
    """A graph of 100 us that is a function of the cost of recording."""

    takes_recording_cost = True

    def __init__(self, shorter: Callable[[float], float]) -> None:
        self._shorter = shorter

    def iteration_ns(self, changes: Sequence[Change]) -> int:
        (cost,) = changes
        assert isinstance(cost, RecordingCost)
        return round(100_000 - self._shorter(cost.ns))


def linear(cost: float) -> float:
    return min(10 * cost, 60_000)


@pytest.mark.parametrize(
    ("undisturbed", "cost"),
    [(80_000, 2_000), (45_000, 5_500), (100_000, 0), (100_900, 0), (101_100, None), (39_000, None)],
)
def test_the_cost_of_recording_is_what_makes_the_iteration_an_undisturbed_one(
    undisturbed: int, cost: float | None
) -> None:
    graph: Any = Costly(linear)
    found = calibration_of(graph, undisturbed)
    assert (found.cost.ns if found else None) == (cost if cost is None else pytest.approx(cost))


def test_a_cost_is_found_to_2_per_mille_where_the_iteration_is_no_straight_line_of_it() -> None:
    graph: Any = Costly(lambda cost: 900 * cost**0.5)
    found = calibration_of(graph, 71_540)
    assert found is not None
    assert abs(found.before_ns - 71_540) <= 0.002 * 71_540
    assert calibration_of(graph, None) is None
    assert calibration_of(SimpleNamespace(), 71_540) is None  # type: ignore[arg-type]


def of_ranks(*undisturbed: tuple[float | None, float | None]) -> Graphs:
    """Of a run whose ranks have these medians and spreads of undisturbed iterations."""
    results = [
        SimpleNamespace(undisturbed=SimpleNamespace(median_ns=median, spread=spread))
        for median, spread in undisturbed
    ]
    known: Any = SimpleNamespace(
        by_rank={rank: SimpleNamespace(result=one) for rank, one in enumerate(results)}
    )
    return Graphs(known)


def test_the_undisturbed_iteration_is_the_mean_of_the_ranks_that_have_one() -> None:
    graphs = of_ranks((100.0, 0.01), (None, None), (200.0, 0.02), (600.0, 0.9))
    assert (graphs.undisturbed_ns, graphs.spread) == (300.0, 0.02)
    unknown = of_ranks((None, None))
    assert (unknown.undisturbed_ns, unknown.spread) == (None, None)
