# SPDX-License-Identifier: Apache-2.0
"""A step in which a graph was captured is not like the others."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.shares import over
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.gpu_record.captured_launches import captured_sentence

SLUG = "graph_capture"


def rule(analysis: Analysis) -> Iterator[Finding]:
    """The rank with the most launches into graphs."""
    found = [rank for rank in analysis.ranks if rank.launches.captured]
    if not found:
        return
    worst = max(found, key=lambda rank: rank.launches.captured)
    launches = worst.launches
    text = captured_sentence(launches.captured, launches.captured_steps).removesuffix(".")
    yield Finding(
        SLUG,
        "info",
        f"{text} ({over([worst])}).",
        {
            "captured": {rank.rank: rank.launches.captured for rank in found},
            "steps": {rank.rank: list(rank.launches.captured_steps) for rank in found},
        },
        "Look at a later step, in which graphs are only launched: record after the capture "
        "(`--torch-profile-skip-first`).",
    )
