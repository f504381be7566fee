# SPDX-License-Identifier: Apache-2.0
"""Copies and memsets that nothing overlaps."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.examples import largest
from megatron.torch_trace.analysis.findings.shares import known, mean_share, over, severity
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.analysis.timeline.kernel_names import MEMORY
from megatron.torch_trace.wording import percent

SLUG = "memory_copies"
_LEAST = 0.03
"""Of the window: an iteration differs from the next by as much."""

_ON_DEVICE = (
    "Look at the operators that copy on the device: `aten::contiguous`, `aten::cat` and others "
    "(`--json`)."
)
_FROM_HOST = "Pin the host's memory, and copy from it with `non_blocking`."
_TO_HOST = (
    "Find out what copies to the host (a checkpoint, offloading, `.cpu()`, logging): do it less "
    "often, or into pinned memory with `non_blocking`; the operators that copy are in `--json`."
)


def _advice(name: str) -> str:
    """By the kind of copy that takes most time."""
    if "HtoD" in name:
        return _FROM_HOST
    return _TO_HOST if "DtoH" in name else _ON_DEVICE


def rule(analysis: Analysis) -> Iterator[Finding]:
    """All of them together, and the kind that takes most time."""
    ranks = known(analysis)
    share = mean_share(ranks, lambda r: r.breakdown.exposed_memory if r.breakdown else 0)
    if share < _LEAST:
        return
    rows = [(rank, row) for rank in ranks for row in rank.kernels if row.kind == MEMORY]
    totals: dict[str, list[int]] = {}
    for _, row in rows:
        entry = totals.setdefault(row.name, [0, 0])
        entry[0] += row.calls
        entry[1] += row.time_ns
    name, (calls, time) = max(totals.items(), key=lambda item: item[1][1])
    yield Finding(
        SLUG,
        severity(share),
        f"Copies and memsets are exposed for {percent(share)} of the window ({over(ranks)}), most "
        f"of that time by {name}.",
        {"share": share, "name": name, "calls": calls, "time_ns": time},
        _advice(name),
        share,
        largest((row.time_ns, rank.rank, row.longest) for rank, row in rows),
    )
