# SPDX-License-Identifier: Apache-2.0
"""The iteration and its parts in two analyses.

Parts are tested over steps, each the mean of the ranks: ranks wait for each other, so they are not
samples of their own. What an analysis holds by rank and not by step is tested over ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from statistics import fmean

from megatron.torch_trace.analysis.compare.statistics import STEPS, Difference, by_rank, independent
from megatron.torch_trace.analysis.compare.tables import steps_of
from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.timeline.breakdown import Breakdown
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_PARTS

CAUSES = ("data", "sync", "cpu", "gpu", "unknown")
"""Why the GPU was idle, see `host.IdleCauses`."""


def compare_parts(a: Analysis, b: Analysis) -> dict[str, Difference]:
    """`iteration`, its four parts, both sums of communication, and `idle: <cause>`."""
    rows = {name: _over_steps(a, b, name) for name in ("iteration", *BREAKDOWN_PARTS)}
    for name in ("communication", "overlapped_communication"):
        rows[name] = _over_ranks(a, b, attrgetter(f"{name}_ns"))
    for cause in CAUSES:
        rows[f"idle: {cause}"] = _over_ranks(a, b, partial(_idle, cause))
    return rows


def compare_dimensions(a: Analysis, b: Analysis) -> dict[str, Difference]:
    """Exposed communication of each dimension that one of them has."""
    names = dict.fromkeys([*a.summary.dimensions, *b.summary.dimensions])
    return {name: _over_ranks(a, b, partial(_exposed, name)) for name in names}


def parts_of_rank(rank: RankResult) -> dict[str, float]:
    """A rank's mean iteration, ns, and its parts if its utilisation is known."""
    steps = steps_of(rank)
    parts = {"iteration": rank.window_ns, **_named(rank.breakdown)}
    return {name: value / steps for name, value in parts.items()}


def _idle(cause: str, rank: RankResult) -> float | None:
    return None if rank.breakdown is None else float(getattr(rank.host.idle, f"{cause}_ns"))


def _exposed(dimension: str, rank: RankResult) -> float | None:
    if rank.breakdown is None:
        return None
    return sum(total.exposed_ns for total in rank.dimensions if total.dimension == dimension)


def _over_steps(a: Analysis, b: Analysis, name: str) -> Difference:
    sides = []
    for side in (a, b):
        by_step: dict[int, list[float]] = {}
        for rank in side.ranks:
            for step, parts in _steps(rank):
                if name in parts:
                    by_step.setdefault(step, []).append(parts[name])
        sides.append([fmean(values) for values in by_step.values()])
    return independent(sides[0], sides[1], STEPS)


def _steps(rank: RankResult) -> Iterable[tuple[int, Mapping[str, float]]]:
    if not rank.steps:
        yield 0, {"iteration": rank.window_ns, **_named(rank.breakdown)}
    for step in rank.steps:
        yield step.step, {"iteration": step.end_ns - step.start_ns, **_named(step.breakdown)}


def _named(breakdown: Breakdown | None) -> dict[str, float]:
    return {} if breakdown is None else {part: getattr(breakdown, part) for part in BREAKDOWN_PARTS}


def _over_ranks(
    a: Analysis, b: Analysis, value: Callable[[RankResult], float | None]
) -> Difference:
    sides = []
    for side in (a, b):
        found = {rank.rank: (value(rank), steps_of(rank)) for rank in side.ranks}
        sides.append({r: v / steps for r, (v, steps) in found.items() if v is not None})
    return by_rank(sides[0], sides[1])
