# SPDX-License-Identifier: Apache-2.0
"""Where in the traces a finding can be seen best: the one example that its rule returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from megatron.torch_trace.analysis.communication.totals import CommunicationRow
from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.timeline.moment import Example, Moment


def largest(rows: Iterable[tuple[float, int, Moment | None]]) -> Example | None:
    """(rank, moment) of the largest value, of equal ones the first.

    Args:
        rows: value, rank, moment; a row without a moment cannot be shown.
    """
    found = None
    most = -1.0
    for value, rank, moment in rows:
        if moment is not None and value > most:
            most, found = value, (rank, moment)
    return found


def of_communication(
    analysis: Analysis, wanted: Callable[[CommunicationRow], bool]
) -> Example | None:
    """The longest call of the rows that are exposed longest."""
    return largest(
        (row.exposed_ns, rank.rank, row.longest)
        for rank in analysis.ranks
        for row in rank.communication
        if wanted(row)
    )


def most_idle(rank: RankResult) -> Example | None:
    """The slice of time in which the GPU of this rank was idle longest."""
    course = rank.course
    if course is None:
        return None
    parts = (course.compute, course.exposed_communication, course.exposed_memory)
    busy = [sum(slices) for slices in zip(*parts, strict=True)]
    bounds = list(zip(course.edges_ns[:-1], course.edges_ns[1:], strict=True))
    idle = [end - start - used for (start, end), used in zip(bounds, busy, strict=True)]
    start, end = bounds[idle.index(max(idle))]
    return rank.rank, Moment(start, end - start)
