# SPDX-License-Identifier: Apache-2.0
"""The GPU runs far behind the CPU, so the window shows work of earlier steps."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.shares import known, mean_share, over
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.wording import percent

SLUG = "launched_before_window"
_LEAST = 0.05
"""Of the pieces of work: so many have no operator, module or step of their own."""
_LEAST_IDLE = 0.10
"""Of the window."""


def rule(analysis: Analysis) -> Iterator[Finding]:
    """Where that is much of the work, or of the idle time whose reason it would tell."""
    ranks = known(analysis)
    early = [
        rank
        for rank in ranks
        if rank.launches.work_without_launch > _LEAST * sum(row.calls for row in rank.kernels)
        or (
            rank.host.idle.unknown_ns > _LEAST_IDLE * rank.window_ns
            and not rank.launches.work_without_link
        )
    ]
    if not early:
        return
    counts = {rank.rank: rank.launches.work_without_launch for rank in early}
    total = sum(row.calls for rank in early for row in rank.kernels)
    share = sum(counts.values()) / total if total else 0.0
    idle = mean_share(early, lambda rank: rank.host.idle.unknown_ns)
    reason = (
        f", and so is the reason of idle time, {percent(idle)} of the window"
        if idle > _LEAST_IDLE
        else ""
    )
    yield Finding(
        SLUG,
        "info",
        f"{percent(share)} of the GPU work in the window was launched before the window began "
        f"({over(early)}): the GPU runs behind the CPU. The operators of that work are unknown"
        f"{reason}.",
        {"work_without_launch": counts, "share": share},
        "Read the window as a whole rather than single steps, or record more iterations "
        "(`--torch-profile-active`).",
    )
