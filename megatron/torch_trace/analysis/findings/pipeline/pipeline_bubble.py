# SPDX-License-Identifier: Apache-2.0
"""Stages that wait for others between their first and last micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean

from megatron.torch_trace.analysis.findings.megatron_flags import flags, interleaves
from megatron.torch_trace.analysis.findings.pipeline.stages import by_stage, most_in_bubble
from megatron.torch_trace.analysis.findings.shares import severity
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.analysis.schedule.pipeline import PipelineStep
from megatron.torch_trace.wording import percent

SLUG = "pipeline_bubble"
_LEAST = 0.10
"""Of the time between first and last micro-batch: 1F1B with nine micro-batches a stage has less."""

_FAR = (
    "Look first for what holds up single stages (launches, stragglers, uneven layers), then at the "
    "schedule: the schedule explains less than half of the bubble."
)


def rule(analysis: Analysis) -> Iterator[Finding]:
    """The mean bubble over ranks and steps."""
    entries = [one for rank in analysis.ranks if not rank.unknown for one in rank.pipeline]
    if not entries:
        return
    share = mean(one.bubble_share for one in entries)
    if share < _LEAST:
        return
    ideal = [one.ideal_share for one in entries if one.ideal_share is not None]
    chunks = max((one.chunks or 1 for one in entries), default=1)
    depth = max((one.stages or 0 for one in entries), default=0)
    counts = _microbatches(entries)
    part = mean(
        sum(one.bubble_ns for one in rank.pipeline) / rank.window_ns
        for rank in analysis.ranks
        if rank.pipeline and not rank.unknown
    )
    yield Finding(
        SLUG,
        severity(part),
        "The pipeline bubble takes "
        f"{percent(share)} of the time between first and last micro-batch"
        f"{_expected(ideal, depth, chunks, counts)}.",
        {
            "share": share,
            "share_of_window": part,
            "ideal_share": mean(ideal) if ideal else None,
            "microbatches": counts,
            "chunks": chunks,
            "stages": depth,
            "share_by_stage": {
                stage: mean(one.bubble_share for one in of)
                for stage, of in by_stage(analysis).items()
            },
        },
        _FAR if ideal and share > 2 * mean(ideal) else for_bubble(analysis.ranks, chunks),
        part,
        most_in_bubble(analysis),
    )


def _microbatches(entries: Sequence[PipelineStep]) -> list[int]:
    told = [one for one in entries if one.microbatches and one.chunks] or entries
    return sorted({one.microbatches for one in told if one.microbatches})


def _expected(ideal: Sequence[float], depth: int, chunks: int, counts: Sequence[int]) -> str:
    if not (ideal and counts and depth):
        return ""
    each = f" of {chunks} chunks each" if chunks > 1 else ""
    return (
        f"; with {depth} stages{each} and {counts[-1]} micro-batches of equal cost it would take "
        f"{percent(mean(ideal))}"
    )


def for_bubble(ranks: Sequence[RankResult], chunks: int) -> str:
    """What makes the bubble of a pipeline smaller, of so many virtual stages on each rank."""
    sizes = "a smaller `--micro-batch-size`, or a larger `--global-batch-size`, which changes the "
    more = f"Use more micro-batches {flags(ranks, f'{sizes}training')}"
    if chunks > 1 or interleaves(ranks):
        return f"{more}, or more virtual stages of fewer layers each."
    return (
        f"{more}, or interleave the stages "
        f"{flags(ranks, '`--num-layers-per-virtual-pipeline-stage`')}."
    )
