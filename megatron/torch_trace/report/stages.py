# SPDX-License-Identifier: Apache-2.0
"""Which ranks stand for the pipeline's stages where a report has no room for all."""

from __future__ import annotations

from collections.abc import Callable

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult


def first_and_last(
    analysis: Analysis, wanted: Callable[[RankResult], object]
) -> tuple[RankResult, ...]:
    """The lowest rank of the first and of the last stage, of those that `wanted` accepts."""
    stages: dict[int, RankResult] = {}
    for rank in analysis.ranks:
        if wanted(rank):
            stages.setdefault(rank.coordinates.get("pp", 0), rank)
    numbers = sorted(stages)
    return tuple(stages[number] for number in dict.fromkeys((*numbers[:1], *numbers[-1:])))


def label(rank: RankResult, shown: tuple[RankResult, ...]) -> str:
    """`rank 4`, with its stage where several are shown."""
    stage = f", stage {rank.coordinates.get('pp')}" if len(shown) > 1 else ""
    return f"{rank.name}{stage}"
