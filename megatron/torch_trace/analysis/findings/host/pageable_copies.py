# SPDX-License-Identifier: Apache-2.0
"""The CPU waits for the GPU in calls that copy memory of the host that is not pinned."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.examples import largest
from megatron.torch_trace.analysis.findings.shares import (
    by_iteration,
    known,
    mean_share,
    milliseconds,
    over,
    severity,
    within,
)
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.wording import number, percent

SLUG = "pageable_copies"
_LEAST = 0.03
"""Of the window: an iteration differs from the next by as much."""

_ADVICE = (
    "Pin the memory (`pin_memory=True` of the DataLoader, or `tensor.pin_memory()`) and copy with "
    "`non_blocking=True`: then the CPU launches what follows while the GPU still works."
)


def rule(analysis: Analysis) -> Iterator[Finding]:
    """All of them together, and the operator in which they take longest."""
    ranks = known(analysis)
    share = mean_share(ranks, lambda rank: sum(row.time_ns for row in rank.host.pageable_copies))
    if share < _LEAST:
        return
    rows = [(rank, row) for rank in ranks for row in rank.host.pageable_copies]
    callers: dict[str, list[int]] = {}
    for _, row in rows:
        entry = callers.setdefault(row.caller, [0, 0])
        entry[0] += row.calls
        entry[1] += row.time_ns
    steps, what = by_iteration(ranks)
    each = len(ranks) * steps
    caller, (calls, time) = max(callers.items(), key=lambda item: item[1][1])
    yield Finding(
        SLUG,
        severity(share),
        f"For {percent(share)} of the window the CPU waits for the GPU in copies of pageable "
        f"memory ({over(ranks)}), most of that time {within(caller)}: {number(calls / each)} "
        f"time{'s' * (calls != each)} and {milliseconds(time / each)} in {what}.",
        {"share": share, "caller": caller, "calls": calls, "time_ns": time},
        _ADVICE,
        share,
        largest((row.time_ns, rank.rank, row.longest) for rank, row in rows),
    )
