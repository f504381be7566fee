# SPDX-License-Identifier: Apache-2.0
"""First and last stage compared: embedding and loss are work too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean

from megatron.torch_trace.analysis.findings.megatron_flags import flags, has_flag
from megatron.torch_trace.analysis.findings.pipeline import layer_imbalance
from megatron.torch_trace.analysis.findings.pipeline.stages import by_stage, most_in_bubble
from megatron.torch_trace.analysis.findings.shares import milliseconds, severity
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.analysis.timeline.command_line import INTERLEAVING, LAYOUT

SLUG = "uneven_stages"
_LEAST = 0.15
"""More compute than the fastest stage: a layer, of stages of six or seven."""


def rule(analysis: Analysis) -> Iterator[Finding]:
    """The slowest and the fastest stage; where modules tell which layers it is, they say more."""
    stages = by_stage(analysis)
    if len(stages) < 2 or any(layer_imbalance.rule(analysis)):
        return
    compute = {stage: mean(one.compute_ns for one in of) for stage, of in stages.items()}
    slow, fast = max(compute, key=lambda s: compute[s]), min(compute, key=lambda s: compute[s])
    if compute[slow] < (1 + _LEAST) * compute[fast]:
        return
    first, last = min(compute), max(compute)
    window = mean(rank.window_ns / max(len(rank.steps), 1) for rank in analysis.ranks)
    share = (compute[slow] - compute[fast]) / window
    ends = (
        ""
        if {slow, fast} == {first, last}
        else f" (first stage {milliseconds(compute[first])}, last {milliseconds(compute[last])})"
    )
    yield Finding(
        SLUG,
        severity(share),
        f"Stage {slow} computes {milliseconds(compute[slow])} in an iteration, stage {fast} only "
        f"{milliseconds(compute[fast])}{ends}.",
        {"compute_ns": compute, "share": share},
        for_uneven_stages(analysis.ranks),
        share,
        most_in_bubble(analysis),
    )


def for_uneven_stages(ranks: Sequence[RankResult]) -> str:
    """How to move layers between stages."""
    if has_flag(ranks, LAYOUT):
        return f"Move layers between stages in `{LAYOUT}`."
    ways = (
        "`--decoder-first-pipeline-num-layers` and `--decoder-last-pipeline-num-layers`, or "
        "instead of them `--account-for-embedding-in-pipeline-split` and "
        f"`--account-for-loss-in-pipeline-split`, core 0.11 on{_with_interleaving(ranks)}"
    )
    return f"Move layers between stages {flags(ranks, ways)}."


def _with_interleaving(ranks: Sequence[RankResult]) -> str:
    if not has_flag(ranks, INTERLEAVING[0]):
        return ""
    return f"; with the first two give `{INTERLEAVING[1]}` instead of `{INTERLEAVING[0]}`"
