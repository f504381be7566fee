# SPDX-License-Identifier: Apache-2.0
"""A recording with neither GPU work nor launches: the CPU's time is the answer."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.shares import over
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult

SLUG = "recorded_on_the_cpu"
_CPU = "cpu"
"""What capture writes as the device of a rank without a GPU."""

_TRAINED = "All times are times of the CPU."
_RECORDED = (
    "Record the GPU's activity too if training used a GPU (`ProfilerActivity.CUDA` in "
    "torch.profiler, `--torch-profile-activities cpu cuda` here): all times are times of the CPU."
)


def rule(analysis: Analysis) -> Iterator[Finding]:
    """One for all ranks, by what the recording itself says."""
    ranks = [
        rank
        for rank in analysis.ranks
        if rank.unknown and is_of_the_cpu(rank) and not rank.other_device
    ]
    if not ranks:
        return
    trained = all(rank.device == _CPU for rank in ranks)
    yield Finding(
        SLUG,
        "info",
        f"Training ran on the CPU ({over(ranks)}), so this report is about the CPU."
        if trained
        else f"Only the CPU was recorded ({over(ranks)}): no GPU work and no launches.",
        {"ranks": [rank.rank for rank in ranks]},
        _TRAINED if trained else _RECORDED,
    )


def is_of_the_cpu(rank: RankResult) -> bool:
    """Whether the trace of this rank is of the CPU alone."""
    return rank.cpu is not None or rank.device == _CPU
