# SPDX-License-Identifier: Apache-2.0
"""Averages over ranks that several rules need."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.timeline.kernel_names import COMPUTE
from megatron.torch_trace.wording import number

HIGH = 0.15
MEDIUM = 0.05
"""Shares of the iteration from which a loss of time is of high, or medium, severity."""


def severity(share: float) -> str:
    """`high` from 15 % of the iteration, `medium` from 5 %, else `low`."""
    return "high" if share >= HIGH else "medium" if share >= MEDIUM else "low"


def known(analysis: Analysis) -> list[RankResult]:
    """Ranks whose utilisation is known."""
    return [rank for rank in analysis.ranks if rank.breakdown is not None]


def mean_share(ranks: Sequence[RankResult], part: Callable[[RankResult], int]) -> float:
    """Mean over ranks of part(rank) / window, a share of 1; 0 without ranks.

    Args:
        ranks: of which some may have an empty window, which does not count.
        part: a time of a rank, ns.
    """
    shares = [part(rank) / rank.window_ns for rank in ranks if rank.window_ns]
    return sum(shares) / len(shares) if shares else 0.0


def computing_kernels(ranks: Sequence[RankResult]) -> int:
    """How many compute kernels all of them ran."""
    return sum(row.calls for rank in ranks for row in rank.kernels if row.kind == COMPUTE)


def by_iteration(ranks: Sequence[RankResult]) -> tuple[int, str]:
    """What counts of a window are divided by, and where that many are then."""
    steps = max((len(rank.steps) for rank in ranks), default=0)
    return (steps, "each iteration") if steps else (1, "the window")


def within(caller: str) -> str:
    """`in aten::to`; what stands in brackets is no operator: `no operator`."""
    return caller.strip("()") if caller.startswith("(") else f"in {caller}"


def milliseconds(ns: float) -> str:
    """`12.3 ms`, in three digits."""
    return f"{number(ns / 1e6)} ms"


def an_iteration(ns: float, rank: RankResult) -> str:
    """A time of a rank's window, by iteration: `74.7 ms an iteration`; `12.3 ms` of a single one.

    Args:
        ns: in the whole window.
        rank: whose window.
    """
    steps = len(rank.steps)
    return f"{milliseconds(ns / steps)} an iteration" if steps > 1 else milliseconds(ns)


def over(ranks: Sequence[RankResult]) -> str:
    """How the numbers of a sentence were averaged: `rank 0`, or `mean of 4 ranks`."""
    return ranks[0].name if len(ranks) == 1 else f"mean of {len(ranks):,} ranks"
