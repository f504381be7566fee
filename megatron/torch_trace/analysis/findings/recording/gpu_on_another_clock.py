# SPDX-License-Identifier: Apache-2.0
"""The GPU rows are on another clock: what rests on launch delays is unknown."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.wording import duration, ranks

SLUG = "gpu_on_another_clock"


def rule(analysis: Analysis) -> Iterator[Finding]:
    """One for all ranks; the largest offset."""
    offsets = {
        rank.rank: rank.launches.clock_offset_ns
        for rank in analysis.ranks
        if rank.launches.clock_offset_ns is not None
    }
    if not offsets:
        return
    worst = max(offsets.values(), key=abs)
    one = len(offsets) == 1
    whose = next(rank.name for rank in analysis.ranks if rank.rank in offsets)
    whose = whose if one else f"ranks {ranks(tuple(offsets))}"
    yield Finding(
        SLUG,
        "high",
        f"The GPU rows of {whose} are on another clock "
        f"than the CPU's, {duration(abs(worst))} or more {'behind' if worst < 0 else 'ahead'}"
        f"{'' if one else ' at the worst'}: utilisation, idle time and launch delays are unknown.",
        {"clock_offset_ns": offsets},
        "Record again; if the offset comes back, update the GPU's driver and torch, and look at "
        "what sets the host's clock during training (suspended virtual machines, NTP steps).",
        1.0,
    )
