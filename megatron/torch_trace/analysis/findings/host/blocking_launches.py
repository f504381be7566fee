# SPDX-License-Identifier: Apache-2.0
"""Every launch call returns only when its work has ended: CPU and GPU work in turn."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.examples import most_idle
from megatron.torch_trace.analysis.findings.shares import (
    by_iteration,
    known,
    mean_share,
    over,
    severity,
)
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.wording import duration, number

SLUG = "blocking_launches"
_FEWEST = 50
"""Launches: of fewer it is chance that the CPU is never two ahead."""
_LONG_NS = 20_000
"""Of a call, on average: a launch that does not wait takes about 5 us."""
_WORK = 0.9
"""Of the GPU's work, that the time inside the calls is at least: each holds its own work."""


def rule(analysis: Analysis) -> Iterator[Finding]:
    """One for all ranks that do so."""
    ranks = [rank for rank in known(analysis) if _waits_in_launches(rank)]
    if not ranks:
        return
    share = mean_share(ranks, lambda rank: rank.host.idle.cpu_ns)
    steps, what = by_iteration(ranks)
    launches = sum(rank.launches.launches for rank in ranks)
    calls = sum(rank.launches.calls_ns for rank in ranks)
    yield Finding(
        SLUG,
        severity(share),
        f"Launch calls return only when their work has ended ({over(ranks)}): "
        f"{number(launches / len(ranks) / steps)} calls of {duration(calls / launches)} on average "
        f"in {what}, and never is more than one piece of work launched ahead.",
        {
            "share": share,
            "launches": {rank.rank: rank.launches.launches for rank in ranks},
            "calls_ns": {rank.rank: rank.launches.calls_ns for rank in ranks},
        },
        "Unset `CUDA_LAUNCH_BLOCKING` (ROCm: `HIP_LAUNCH_BLOCKING`, `AMD_SERIALIZE_KERNEL`), which "
        "is for debugging, and do not measure under a debugger or compute-sanitizer: CPU and GPU "
        "work in turn.",
        share,
        most_idle(ranks[0]),
    )


def _waits_in_launches(rank: RankResult) -> bool:
    launches, breakdown = rank.launches, rank.breakdown
    if launches.depth_max != 1 or launches.launches < _FEWEST or breakdown is None:
        return False
    work = rank.window_ns - breakdown.idle
    return launches.calls_ns >= max(_LONG_NS * launches.launches, _WORK * work)
