# SPDX-License-Identifier: Apache-2.0
"""Findings about how the GPU's work was recorded: clocks, and graphs that were captured."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.shares import over
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.gpu_record.captures import captured_sentence
from megatron.torch_trace.wording import duration, ranks


def gpu_on_another_clock(analysis: Analysis) -> Iterator[Finding]:
    """The GPU's rows are not where they were: what rests on launch delays is unknown."""
    offsets = {
        rank.rank: rank.launches.clock_offset_ns
        for rank in analysis.ranks
        if rank.launches.clock_offset_ns is not None
    }
    if not offsets:
        return
    worst = max(offsets.values(), key=abs)
    one = len(offsets) == 1
    yield Finding(
        "gpu_on_another_clock",
        "high",
        f"The GPU's rows of rank{'' if one else 's'} {ranks(tuple(offsets))} are on another clock "
        f"than the CPU's, {duration(abs(worst))} or more {'behind' if worst < 0 else 'ahead'}"
        f"{'' if one else ' at the worst'}: utilisation, idle time and launch delays are unknown.",
        {"clock_offset_ns": offsets},
        "Record again; if the offset comes back, update the GPU's driver and torch, and look at "
        "what sets the host's clock during training (suspended virtual machines, NTP steps).",
        1.0,
    )


def graph_capture(analysis: Analysis) -> Iterator[Finding]:
    """A step in which a graph was captured is not like the others."""
    found = [rank for rank in analysis.ranks if rank.launches.captured]
    if not found:
        return
    worst = max(found, key=lambda rank: rank.launches.captured)
    launches = worst.launches
    text = captured_sentence(launches.captured, launches.captured_steps).removesuffix(".")
    yield Finding(
        "graph_capture",
        "info",
        f"{text} ({over([worst])}).",
        {
            "captured": {rank.rank: rank.launches.captured for rank in found},
            "steps": {rank.rank: list(rank.launches.captured_steps) for rank in found},
        },
        "Look at a later step, in which graphs are only launched: record after the capture "
        "(`--torch-profile-skip-first`).",
    )


RULES = (gpu_on_another_clock, graph_capture)
