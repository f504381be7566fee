# SPDX-License-Identifier: Apache-2.0
"""Findings about the pipeline: bubbles and uneven stages."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from megatron.torch_trace.analysis.findings.advice import for_bubble, for_uneven_stages
from megatron.torch_trace.analysis.findings.layers import layer_imbalance
from megatron.torch_trace.analysis.findings.shares import known, milliseconds, severity
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.analysis.schedule.pipeline import PipelineStep
from megatron.torch_trace.wording import percent

_BUBBLE = 0.10
"""Of the time between first and last micro-batch: 1F1B with nine micro-batches a stage has less."""
_UNEVEN = 0.15
"""More compute than the fastest stage: a layer, of stages of six or seven."""


def stages(analysis: Analysis) -> dict[int, list[PipelineStep]]:
    """Entries of all ranks and steps by stage; those of unknown stage, or work, are left out."""
    found: dict[int, list[PipelineStep]] = {}
    for rank in known(analysis):
        for one in rank.pipeline:
            if one.stage is not None:
                found.setdefault(one.stage, []).append(one)
    return dict(sorted(found.items()))


def bubble(analysis: Analysis) -> Iterator[Finding]:
    """Stages that wait for others between their first and last micro-batch."""
    entries = [one for rank in analysis.ranks if not rank.unknown for one in rank.pipeline]
    if not entries:
        return
    share = mean(one.bubble_share for one in entries)
    if share < _BUBBLE:
        return
    ideal = [one.ideal_share for one in entries if one.ideal_share is not None]
    told = [one for one in entries if one.microbatches and one.chunks] or entries
    counts = sorted({one.microbatches for one in told if one.microbatches})
    chunks = max((one.chunks or 1 for one in entries), default=1)
    depth = max((one.stages or 0 for one in entries), default=0)
    by_stage = {stage: mean(o.bubble_share for o in of) for stage, of in stages(analysis).items()}
    text = (
        f"The pipeline's bubble is {percent(share)} of the time between first and last micro-batch"
    )
    if ideal and counts and depth:
        text += (
            f"; {depth} stages{f' of {chunks} chunks' if chunks > 1 else ''} and {counts[-1]} "
            f"micro-batches of equal cost would have {percent(mean(ideal))}"
        )
    part = mean(
        sum(one.bubble_ns for one in rank.pipeline) / rank.window_ns
        for rank in analysis.ranks
        if rank.pipeline and not rank.unknown
    )
    far = bool(ideal) and share > 2 * mean(ideal)
    yield Finding(
        "pipeline_bubble",
        severity(part),
        f"{text}.",
        {
            "share": share,
            "share_of_window": part,
            "ideal_share": mean(ideal) if ideal else None,
            "microbatches": counts,
            "chunks": chunks,
            "stages": depth,
            "share_by_stage": by_stage,
        },
        (
            "The schedule explains less than half of it: first look for what holds up single "
            "stages (launches, stragglers, uneven layers), then at the schedule."
            if far
            else for_bubble(analysis.ranks, chunks)
        ),
        part,
    )


def uneven_stages(analysis: Analysis) -> Iterator[Finding]:
    """First and last stage compared: embedding and loss are work too.

    Where modules tell which layers it is, that finding says more.
    """
    by_stage = stages(analysis)
    if len(by_stage) < 2 or any(layer_imbalance(analysis)):
        return
    compute = {stage: mean(one.compute_ns for one in of) for stage, of in by_stage.items()}
    slow, fast = max(compute, key=lambda s: compute[s]), min(compute, key=lambda s: compute[s])
    if compute[slow] < (1 + _UNEVEN) * compute[fast]:
        return
    first, last = min(compute), max(compute)
    window = mean(rank.window_ns / max(len(rank.steps), 1) for rank in analysis.ranks)
    share = (compute[slow] - compute[fast]) / window
    yield Finding(
        "uneven_stages",
        severity(share),
        f"Stage {slow} computes {milliseconds(compute[slow])} an iteration, stage {fast} only "
        f"{milliseconds(compute[fast])} (first {milliseconds(compute[first])}, last "
        f"{milliseconds(compute[last])}).",
        {"compute_ns": compute, "share": share},
        for_uneven_stages(analysis.ranks),
        share,
    )


RULES = (bubble, uneven_stages)
