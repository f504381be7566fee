# SPDX-License-Identifier: Apache-2.0
"""The pipeline of many ranks in few lines: each stage in each step, as means over its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.analysis.schedule.pipeline import PipelineStep

PipelineEntry = tuple[RankResult, PipelineStep]
"""A rank and one of its steps."""


@dataclass(frozen=True, slots=True)
class StageMeans:
    """One stage in one step; see `PipelineStep`.

    Args:
        ranks: over which these are means.
        microbatches: the counts of the ranks, each once, from the least to the most.
        compute_ns, exposed_pipeline_ns, idle_ns, bubble_share: of the ranks of known utilisation;
            None if there is none.
    """

    stage: int | None
    stages: int | None
    ranks: tuple[int, ...]
    step: int
    microbatches: tuple[int, ...]
    chunks: int | None
    length_ns: float
    compute_ns: float | None
    exposed_pipeline_ns: float | None
    idle_ns: float | None
    bubble_share: float | None
    ideal_share: float | None


def stage_means(entries: Sequence[PipelineEntry]) -> StageMeans:
    """Of at least one rank, all of one stage in one step."""
    first = entries[0][1]
    known = [one for rank, one in entries if not rank.unknown]
    counts = {one.microbatches for _, one in entries if one.microbatches is not None}
    compute, exposed, idle, bubble = (
        mean(getattr(one, name) for one in known) if known else None
        for name in ("compute_ns", "exposed_pipeline_ns", "idle_ns", "bubble_share")
    )
    return StageMeans(
        stage=first.stage,
        stages=first.stages,
        ranks=tuple(rank.rank for rank, _ in entries),
        step=first.step,
        microbatches=tuple(sorted(counts)),
        chunks=first.chunks,
        length_ns=mean(one.end_ns - one.start_ns for _, one in entries),
        compute_ns=compute,
        exposed_pipeline_ns=exposed,
        idle_ns=idle,
        bubble_share=bubble,
        ideal_share=first.ideal_share,
    )


def by_stage(entries: Sequence[PipelineEntry]) -> tuple[StageMeans, ...]:
    """By stage and step, in this order; ranks that do not tell their stage come first.

    Means over the ranks of a stage, in ns and in shares of 1. Source: docs/computed.md, "Pipeline".
    """
    groups: dict[tuple[int, int], list[PipelineEntry]] = {}
    for rank, one in entries:
        key = (-1 if one.stage is None else one.stage, one.step)
        groups.setdefault(key, []).append((rank, one))
    return tuple(stage_means(groups[key]) for key in sorted(groups))
