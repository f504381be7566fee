# SPDX-License-Identifier: Apache-2.0
"""Two analyses side by side: what B does otherwise than A, for an iteration and a rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from megatron.torch_trace.analysis.communication.stragglers import Straggler
from megatron.torch_trace.analysis.compare.breakdown import (
    compare_dimensions,
    compare_parts,
    parts_of_rank,
)
from megatron.torch_trace.analysis.compare.configuration import Configuration, compare_configuration
from megatron.torch_trace.analysis.compare.different_work import WorkAmount, different_work
from megatron.torch_trace.analysis.compare.loop_tree import (
    LoopDifference,
    loop_tree,
    unknown_loop,
)
from megatron.torch_trace.analysis.compare.module_tree import (
    ModuleDifference,
    module_tree,
    unknown_modules,
)
from megatron.torch_trace.analysis.compare.statistics import Difference
from megatron.torch_trace.analysis.compare.tables import (
    CommunicationDifference,
    WorkDifference,
    communication_rows,
    module_rows,
    phase_rows,
    steps_in,
    work_rows,
)
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late one rank is in A and in B.

    Args:
        rank: the rank.
        before, after: ns an iteration that each of the others waits for it; None without it.
        last_before, last_after: share of the calls in which it arrives last.
        mostly: dimension and collective in which that is, in B, else in A.
    """

    rank: int
    before: float | None
    after: float | None
    last_before: float | None
    last_after: float | None
    mostly: str | None


@dataclass(frozen=True, slots=True)
class RankDifference:
    """One rank that A and B both have: its times an iteration, in ns; parts only where known."""

    rank: int
    coordinates: Mapping[str, int]
    before: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The whole answer. Differences are for an iteration and a rank, times in ns.

    Args:
        configuration: what was different to begin with.
        different_work: what shows that A and B do not do the same work.
        iteration: length of an iteration (of the window, where no steps are marked).
        breakdown: name -> difference; the four parts, `communication`, `overlapped_communication`,
            causes of idle time as `idle: cpu`, ...; what is unknown on a side has None there.
        dimensions: exposed communication by dimension.
        undisturbed: length of an iteration without the profiler.
        slowdown: recorded / undisturbed iteration.
        mfu: shares of the peak, of the undisturbed iteration where that is known.
        ranks: those that both have.
        communication, kernels, families, shapes, modules, module_classes, phases: rows by the size
            of the change, complete.
        module_tree: modules once more, those that differ in numbers only as one.
        unknown_modules: why there is no such tree although a side has modules, a sentence.
        loop_tree: paths of the training loop's thread, by time.
        unknown_loop: why there is no such tree although a side has paths, a sentence.
        stragglers: by lateness in B, then in A.
        straggler_before, straggler_after: the rank that a finding calls a straggler; None if none.
        appeared, vanished: findings of B that A has not, and the other way round.
    """

    configuration: Configuration
    different_work: tuple[WorkAmount, ...]
    iteration: Difference
    breakdown: Mapping[str, Difference]
    dimensions: Mapping[str, Difference]
    undisturbed: Difference
    slowdown: Difference
    mfu: Difference
    ranks: tuple[RankDifference, ...]
    communication: tuple[CommunicationDifference, ...]
    kernels: tuple[WorkDifference, ...]
    families: tuple[WorkDifference, ...]
    shapes: tuple[WorkDifference, ...]
    modules: tuple[WorkDifference, ...]
    module_classes: tuple[WorkDifference, ...]
    module_tree: tuple[ModuleDifference, ...]
    unknown_modules: str | None
    loop_tree: tuple[LoopDifference, ...]
    unknown_loop: str | None
    phases: tuple[WorkDifference, ...]
    stragglers: tuple[Lateness, ...]
    straggler_before: int | None
    straggler_after: int | None
    appeared: tuple[Finding, ...]
    vanished: tuple[Finding, ...]


def compare(a: Analysis, b: Analysis) -> Comparison:
    """What is different in B.

    Args:
        a: the one to compare with: the run before, the good window, the rank in time.
        b: the one in question.

    Returns:
        Differences, after minus before: times in ns an iteration and a rank, `mfu` a share of 1,
        `slowdown` a ratio; `Difference.relative` is a share of what was before. What is tested for
        significance, and how, is in docs/compare.md.

    Example:
        comparison = compare(analyze("before"), analyze("after"))
        print(comparison.iteration.relative, comparison.iteration.significant)
    """
    parts = compare_parts(a, b)
    communication = communication_rows(a, b)
    families = work_rows(a, b, "families")
    findings = [{_key(one): one for one in side.findings} for side in (a, b)]
    return Comparison(
        configuration=compare_configuration(a, b),
        different_work=different_work(a, b, families, communication),
        iteration=parts.pop("iteration"),
        breakdown=parts,
        dimensions=compare_dimensions(a, b),
        undisturbed=Difference(
            a.summary.undisturbed_iteration_ns, b.summary.undisturbed_iteration_ns
        ),
        slowdown=Difference(a.summary.slowdown, b.summary.slowdown),
        mfu=Difference(a.mfu.value, b.mfu.value),
        ranks=_ranks(a, b),
        communication=communication,
        kernels=work_rows(a, b, "kernels"),
        families=families,
        shapes=work_rows(a, b, "shapes"),
        modules=module_rows(a, b, "modules"),
        module_classes=module_rows(a, b, "module_classes"),
        module_tree=module_tree(a, b),
        unknown_modules=unknown_modules(a, b),
        loop_tree=loop_tree(a, b),
        unknown_loop=unknown_loop(a, b),
        phases=phase_rows(a, b),
        stragglers=_stragglers(a, b),
        straggler_before=_straggler(a),
        straggler_after=_straggler(b),
        appeared=tuple(one for key, one in findings[1].items() if key not in findings[0]),
        vanished=tuple(one for key, one in findings[0].items() if key not in findings[1]),
    )


def _key(finding: Finding) -> tuple[str, object]:
    # That another rank is late is news, that the same share has another decimal is not.
    return finding.code, finding.evidence.get("rank")


def _straggler(analysis: Analysis) -> int | None:
    ranks = [one.evidence["rank"] for one in analysis.findings if one.code == "straggler"]
    return int(ranks[0]) if ranks else None


def _ranks(a: Analysis, b: Analysis) -> tuple[RankDifference, ...]:
    sides = [{rank.rank: parts_of_rank(rank) for rank in side.ranks} for side in (a, b)]
    return tuple(
        RankDifference(rank.rank, rank.coordinates, sides[0][rank.rank], sides[1][rank.rank])
        for rank in b.ranks
        if rank.rank in sides[0]
    )


def _stragglers(a: Analysis, b: Analysis) -> tuple[Lateness, ...]:
    sides = [{one.rank: one for one in side.stragglers} for side in (a, b)]
    steps = (steps_in(a), steps_in(b))
    rows = [
        Lateness(
            rank=rank,
            before=_delay(sides[0].get(rank), steps[0]),
            after=_delay(sides[1].get(rank), steps[1]),
            last_before=_share(sides[0].get(rank)),
            last_after=_share(sides[1].get(rank)),
            mostly=_mostly(sides[1].get(rank)) or _mostly(sides[0].get(rank)),
        )
        for rank in {*sides[0], *sides[1]}
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.after or 0), -(row.before or 0), row.rank)))


def _delay(one: Straggler | None, steps: float) -> float | None:
    return None if one is None else one.delay_ns / steps


def _share(one: Straggler | None) -> float | None:
    return None if one is None or not one.calls else one.last_arrivals / one.calls


def _mostly(one: Straggler | None) -> str | None:
    return None if one is None or one.dimension is None else f"{one.dimension} {one.collective}"
