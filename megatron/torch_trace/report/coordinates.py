# SPDX-License-Identifier: Apache-2.0
"""Where a rank is in the parallel dimensions, in words."""

from __future__ import annotations

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult


def used_dimensions(analysis: Analysis) -> frozenset[str]:
    """Dimensions in which all ranks are at 0 tell nothing."""
    return frozenset(k for rank in analysis.ranks for k, v in rank.coordinates.items() if v)


def where(rank: RankResult, used: frozenset[str]) -> str:
    """`tp1 pp0`."""
    return " ".join(f"{k}{v}" for k, v in rank.coordinates.items() if k in used)
