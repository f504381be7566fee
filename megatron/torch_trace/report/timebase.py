# SPDX-License-Identifier: Apache-2.0
"""The common clock of all ranks, for figures that show ranks below each other."""

from __future__ import annotations

from statistics import median_low

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult

_FAR_NS = 24 * 3600 * 10**9
"""No window lasts so long: ranks that begin further apart have no clock in common."""


def shifts_of(analysis: Analysis) -> dict[int, int]:
    """What is added to a rank's times to have them on the common clock, ns from the first base.

    A rank that is on another clock, such as one whose trace lost its base time, begins with the
    others: days of nothing would leave no room for what the ranks did.
    """
    offsets = {clock.rank: clock.offset_ns or 0 for clock in analysis.clocks}
    shifts = {rank.rank: rank.base_ns + offsets.get(rank.rank, 0) for rank in analysis.ranks}
    own = {rank.rank: _begin(rank) for rank in analysis.ranks}
    middle = median_low([shift + own[rank] for rank, shift in shifts.items()])
    near = {rank for rank, shift in shifts.items() if abs(shift + own[rank] - middle) <= _FAR_NS}
    first = min(rank.base_ns for rank in analysis.ranks if rank.rank in near)
    return {
        rank: (shift if rank in near else middle - own[rank]) - first
        for rank, shift in shifts.items()
    }


def _begin(rank: RankResult) -> int:
    if rank.course is not None:
        return rank.course.edges_ns[0]
    return rank.steps[0].start_ns if rank.steps else 0
