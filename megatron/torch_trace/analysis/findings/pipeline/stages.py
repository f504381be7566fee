# SPDX-License-Identifier: Apache-2.0
"""What the traces tell of each pipeline stage."""

from __future__ import annotations

from megatron.torch_trace.analysis.findings.examples import largest
from megatron.torch_trace.analysis.findings.shares import known
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.schedule.pipeline import PipelineStep
from megatron.torch_trace.analysis.timeline.moment import Example, Moment


def by_stage(analysis: Analysis) -> dict[int, list[PipelineStep]]:
    """Entries of all ranks and steps by stage; those of unknown stage, or work, are left out."""
    found: dict[int, list[PipelineStep]] = {}
    for rank in known(analysis):
        for one in rank.pipeline:
            if one.stage is not None:
                found.setdefault(one.stage, []).append(one)
    return dict(sorted(found.items()))


def most_in_bubble(analysis: Analysis) -> Example | None:
    """The step of a rank with the largest bubble."""
    return largest(
        (one.bubble_ns, rank.rank, Moment(one.start_ns, one.end_ns - one.start_ns))
        for rank in analysis.ranks
        for one in rank.pipeline
    )
