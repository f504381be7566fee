# SPDX-License-Identifier: Apache-2.0
"""Where in the traces a finding can be seen best."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.analysis.timeline.moment import Moment

Place = tuple[int, Moment]
"""Rank and moment in its trace."""

_EXPOSED = "exposed_communication_"
_CAST = "aten::_to_copy"


def moment_of(finding: Finding, analysis: Analysis) -> Place | None:
    """One telling example of a finding; None for one that is nowhere in particular."""
    if finding.code.startswith(_EXPOSED):
        dimension = finding.code.removeprefix(_EXPOSED)
        return _communication(analysis, lambda row: row.dimension == dimension)
    rule = _RULES.get(finding.code)
    return rule(finding, analysis) if rule else None


def _communication(analysis: Analysis, wanted: Callable[..., bool]) -> Place | None:
    rows = [(row.exposed_ns, rank.rank, row.longest)
            for rank in analysis.ranks for row in rank.communication if wanted(row)]  # fmt: skip
    return _largest(rows)


def _largest(rows: Iterable[tuple[float, int, Moment | None]]) -> Place | None:
    found = None
    most = -1.0
    for value, rank, moment in rows:
        if moment is not None and value > most:
            most, found = value, (rank, moment)
    return found


def _barriers(finding: Finding, analysis: Analysis) -> Place | None:
    return _communication(analysis, lambda row: row.collective == "barrier")


def _straggler(finding: Finding, analysis: Analysis) -> Place | None:
    rows = [
        (one.imposed_wait_ns, straggler.rank, one.worst)
        for straggler in analysis.stragglers
        if straggler.rank == finding.evidence.get("rank")
        for one in straggler.by_collective
    ]
    return _largest(rows)


def _synchronisation(finding: Finding, analysis: Analysis) -> Place | None:
    return _largest(
        (row.time_ns, rank.rank, row.longest) for rank in analysis.ranks for row in rank.host.syncs
    )


def _pipeline(finding: Finding, analysis: Analysis) -> Place | None:
    return _largest(
        (one.bubble_ns, rank.rank, Moment(one.start_ns, one.end_ns - one.start_ns))
        for rank in analysis.ranks
        for one in rank.pipeline
    )


def _copies(finding: Finding, analysis: Analysis) -> Place | None:
    return _largest(
        (row.time_ns, rank.rank, row.longest)
        for rank in analysis.ranks
        for row in rank.kernels
        if row.kind == "memory"
    )


def _casts(finding: Finding, analysis: Analysis) -> Place | None:
    return _largest(
        (row.time_ns, rank.rank, row.longest)
        for rank in analysis.ranks
        for row in rank.operators
        if row.operator == _CAST
    )


def _launches(finding: Finding, analysis: Analysis) -> Place | None:
    """The rank that waits most for its launches, where it was idle longest."""
    return _most_idle(max(analysis.ranks, key=lambda rank: rank.host.idle.cpu_ns))


def _data(finding: Finding, analysis: Analysis) -> Place | None:
    return _most_idle(max(analysis.ranks, key=lambda rank: rank.host.idle.data_ns))


def _most_idle(rank: RankResult) -> Place | None:
    course = rank.course
    if course is None:
        return None
    parts = (course.compute, course.exposed_communication, course.exposed_memory)
    busy = [sum(slices) for slices in zip(*parts, strict=True)]
    bounds = list(zip(course.edges_ns[:-1], course.edges_ns[1:], strict=True))
    idle = [end - start - used for (start, end), used in zip(bounds, busy, strict=True)]
    start, end = bounds[idle.index(max(idle))]
    return rank.rank, Moment(start, end - start)


_RULES: dict[str, Callable[[Finding, Analysis], Place | None]] = {
    "barriers": _barriers,
    "straggler": _straggler,
    "synchronisation": _synchronisation,
    "pipeline_bubble": _pipeline,
    "uneven_stages": _pipeline,
    "memory_copies": _copies,
    "dtype_casts": _casts,
    "launch_bound": _launches,
    "data_loader": _data,
}
