# SPDX-License-Identifier: Apache-2.0
"""Launches without a kernel: utilisation is unknown, and says so."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.recording.recorded_on_the_cpu import is_of_the_cpu
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.wording import counted

SLUG = "missing_gpu_events"
_AGAIN = (
    "Record again with CPU and CUDA activities (`--torch-profile-activities cpu cuda`), without "
    "another profiler (Nsight, DCGM) on the same GPUs, and with a shorter window."
)
_AGAIN_ROCM = (
    "Record again without another profiler (rocprof, omnitrace) on the same GPUs, and with a "
    "shorter window."
)


def rule(analysis: Analysis) -> Iterator[Finding]:
    """One for all ranks that lack GPU work."""
    blind = [
        rank
        for rank in analysis.ranks
        if rank.unknown
        and not is_of_the_cpu(rank)
        and rank.launches.clock_offset_ns is None
        and not rank.other_maker
        and not rank.other_device
    ]
    if not blind:
        return
    launches = sum(rank.launches.kernel_launches for rank in blind)
    without = sum(rank.launches.without_kernel for rank in blind)
    where = blind[0].name
    where += "".join(f", {rank.rank}" for rank in blind[1:8]) + (", ..." if len(blind) > 8 else "")
    fact = (
        f"{without:,} of {counted(launches, 'launch', 'launches')} have no kernel"
        if launches
        else "there is no GPU work in the trace"
    )
    yield Finding(
        SLUG,
        "high",
        f"Utilisation is unknown on {where}: {fact}.",
        {
            "ranks": [rank.rank for rank in blind],
            "launches": launches,
            "without_kernel": without,
        },
        _AGAIN_ROCM if all(rank.is_rocm for rank in blind) else _AGAIN,
        1.0,
    )
