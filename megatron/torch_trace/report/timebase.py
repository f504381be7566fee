# SPDX-License-Identifier: Apache-2.0
"""The common clock of all ranks, for figures that show ranks below each other."""

from __future__ import annotations

from megatron.torch_trace.analysis.results.analysis import Analysis


def shifts_of(analysis: Analysis) -> dict[int, int]:
    """What is added to a rank's times to have them on the common clock, ns from the first base."""
    offsets = {clock.rank: clock.offset_ns or 0 for clock in analysis.clocks}
    first = min(rank.base_ns for rank in analysis.ranks)
    return {rank.rank: rank.base_ns - first + offsets.get(rank.rank, 0) for rank in analysis.ranks}
