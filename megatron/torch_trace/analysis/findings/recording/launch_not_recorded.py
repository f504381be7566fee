# SPDX-License-Identifier: Apache-2.0
"""GPU work of which the trace does not tell the launch: neither before the window nor in it."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.shares import known, over
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.wording import percent

SLUG = "launch_not_recorded"
_LEAST = 0.05
"""Of the pieces of work: so many have no operator, module or step of their own."""


def rule(analysis: Analysis) -> Iterator[Finding]:
    """Where that is much of the work."""
    ranks = [
        rank
        for rank in known(analysis)
        if rank.launches.work_without_link > _LEAST * sum(row.calls for row in rank.kernels)
    ]
    if not ranks:
        return
    counts = {rank.rank: rank.launches.work_without_link for rank in ranks}
    share = sum(counts.values()) / sum(row.calls for rank in ranks for row in rank.kernels)
    yield Finding(
        SLUG,
        "info",
        f"Nothing in the trace shows what launched {percent(share)} of the GPU work in the window "
        f"({over(ranks)}): no correlation, External id or arrow leads to a call. Compute, "
        "communication and copies are known; the operators of that work and the reason of idle "
        "time are not.",
        {"work_without_link": counts, "share": share},
        "Record the CPU's activity too (`ProfilerActivity.CPU` in torch.profiler, "
        "`--torch-profile-activities` here), and keep calls and arrows when a trace is made "
        "smaller.",
    )
