# SPDX-License-Identifier: Apache-2.0
"""From ranks of one or more runs to what fits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from megatron.torch_trace.allocator.fit.fitting import Fit, MeasuredRank, fit_of
from megatron.torch_trace.allocator.fit.moments import Moments
from megatron.torch_trace.allocator.fit.outside import outside_of_torch
from megatron.torch_trace.allocator.ranks.stages import RankMemory, name_of


def fit_of_runs(ranks: Sequence[RankMemory], moments: Sequence[Moments]) -> Fit | str:
    """What fits in the run that was named first; the others tell what differences measure.

    Args:
        ranks: of all runs, in the order in which they were named.
        moments: of each rank.
    """
    runs: dict[str, list[MeasuredRank]] = {}
    for rank, its in zip(ranks, moments, strict=True):
        # A process has one GPU; what it holds on others is no model.
        if its.in_use.max() > 0:
            runs.setdefault(rank.facts.folder, []).append(MeasuredRank(rank, its))
    if not runs:
        return "nothing is in use in the snapshots."
    first, *others = runs.values()
    for one in first:
        answer, whose = one.rank.answer, name_of(one.rank)
        if answer.out_of_memory:
            return (
                f"{whose} ran out of memory, so its peak was never reached; record a run that "
                "fits, with a smaller micro-batch."
            )
        if not answer.entries:
            return (
                f"the snapshot of {whose} has no history, so nothing tells what grows with the "
                "micro-batch."
            )
    seen = [one.rank.facts.outside for one in first if one.rank.facts.outside is not None]
    outside = max(seen) if seen else outside_of_torch(Path(next(iter(runs))))
    return fit_of(first, others, outside)
