# SPDX-License-Identifier: Apache-2.0
"""Findings about the GPU's own work: copies and conversions."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.shares import known, mean_share, over, severity
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.analysis.timeline.kernel_names import MEMORY
from megatron.torch_trace.wording import percent

_COPIES = 0.03
_CASTS = 0.03
"""Of the window: an iteration differs from the next by as much."""


def memory_copies(analysis: Analysis) -> Iterator[Finding]:
    """Copies and memsets that nothing hides."""
    ranks = known(analysis)
    share = mean_share(ranks, lambda r: r.breakdown.exposed_memory if r.breakdown else 0)
    if share < _COPIES:
        return
    totals: dict[str, list[int]] = {}
    for rank in ranks:
        for row in rank.kernels:
            if row.kind == MEMORY:
                entry = totals.setdefault(row.name, [0, 0])
                entry[0] += row.calls
                entry[1] += row.time_ns
    name, (calls, time) = max(totals.items(), key=lambda item: item[1][1])
    yield Finding(
        "memory_copies",
        severity(share),
        f"Copies and memsets are exposed for {percent(share)} of the window ({over(ranks)}), most "
        f"of it {name}.",
        {"share": share, "name": name, "calls": calls, "time_ns": time},
        "Copies from the host: pinned memory and `non_blocking`; copies on the device: look at "
        "`aten::contiguous`, `aten::cat` and the other operators that launch them (`--json`).",
        share,
    )


def dtype_casts(analysis: Analysis) -> Iterator[Finding]:
    """Kernels that only convert from one type or layout to another."""
    ranks = known(analysis)
    share = mean_share(ranks, lambda rank: rank.casts.time_ns)
    if share < _CASTS:
        return
    yield Finding(
        "dtype_casts",
        severity(share),
        f"Conversions by aten::_to_copy take {percent(share)} of the window ({over(ranks)}).",
        {
            "share": share,
            "calls": sum(rank.casts.calls for rank in ranks),
            "time_ns": {rank.rank: rank.casts.time_ns for rank in ranks},
        },
        "Keep tensors in one type, and use fused kernels that convert on the way "
        "(`--transformer-impl transformer_engine`).",
        share,
    )


RULES = (memory_copies, dtype_casts)
