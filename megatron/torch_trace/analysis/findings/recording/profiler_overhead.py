# SPDX-License-Identifier: Apache-2.0
"""Time in which the profiler itself held up the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.shares import mean_share, over, severity
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.wording import percent

SLUG = "profiler_overhead"
_LEAST = 0.02
"""Of the window: every share in the report may be off by as much."""


def rule(analysis: Analysis) -> Iterator[Finding]:
    """By what the profiler itself reports as overhead."""
    ranks = list(analysis.ranks)
    share = mean_share(ranks, lambda rank: rank.host.overhead_ns)
    if share < _LEAST:
        return
    yield Finding(
        SLUG,
        severity(share) if share < 0.15 else "medium",
        f"The profiler itself held up the CPU for {percent(share)} of the window ({over(ranks)}).",
        {"share": share, "overhead_ns": {rank.rank: rank.host.overhead_ns for rank in ranks}},
        "Record less at once: without stacks (`--torch-profile-with-stack`), and with one warm-up "
        "iteration more (`--torch-profile-warmup 2`).",
        share,
    )
