# SPDX-License-Identifier: Apache-2.0
"""The CPU waits for the GPU until nothing is left to run, and has to launch anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from megatron.torch_trace.analysis.findings.examples import largest
from megatron.torch_trace.analysis.findings.megatron_flags import (
    flags,
    has_flag,
    interleaves,
    is_megatron,
)
from megatron.torch_trace.analysis.findings.shares import (
    by_iteration,
    known,
    mean_share,
    milliseconds,
    over,
    severity,
    within,
)
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.wording import number, percent

SLUG = "synchronisation"
_LEAST = 0.03
"""Of the window: an iteration differs from the next by as much."""


def rule(analysis: Analysis) -> Iterator[Finding]:
    """All of them together, and the call that the CPU waits in longest."""
    ranks = known(analysis)
    share = mean_share(ranks, lambda rank: rank.host.idle.sync_ns)
    rows = [row for rank in ranks for row in rank.host.syncs]
    if share < _LEAST or not rows:
        return
    by_caller: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        entry = by_caller.setdefault((row.call, row.caller), [0, 0])
        entry[0] += row.calls
        entry[1] += row.time_ns
    steps, what = by_iteration(ranks)
    each = len(ranks) * steps
    (call, caller), (calls, time) = max(by_caller.items(), key=lambda item: item[1][1])
    yield Finding(
        SLUG,
        severity(share),
        f"The GPU is idle for {percent(share)} of the window because the CPU waits until the GPU "
        f"has nothing left to run ({over(ranks)}). The CPU waits longest in {call} "
        f"({within(caller)}): {number(calls / each)} time{'s' * (calls != each)} and "
        f"{milliseconds(time / each)} in {what}.",
        {
            "share": share,
            "syncs": [
                {"call": c, "caller": by, "calls": n, "time_ns": t}
                for (c, by), (n, t) in sorted(by_caller.items(), key=lambda item: -item[1][1])
            ],
        },
        for_synchronisation(call, ranks),
        share,
        largest(
            (row.time_ns, rank.rank, row.longest)
            for rank in analysis.ranks
            for row in rank.host.syncs
        ),
    )


def for_synchronisation(call: str, ranks: Sequence[RankResult]) -> str:
    """How to wait for the GPU less often."""
    piped = any(rank.pipeline for rank in ranks)
    if call == "cudaDeviceSynchronize" and piped and is_megatron(ranks) and not interleaves(ranks):
        return (
            "Interleave the stages (`--num-layers-per-virtual-pipeline-stage`): without "
            "interleaving Megatron synchronises the device after each batched send and receive."
        )
    flag = "--no-check-for-nan-in-loss-and-grad"
    check = flags(ranks, f"`{flag}`")
    checks = "" if has_flag(ranks, flag) else f" no check for NaN {check},"
    return (
        "Take the synchronisation out of the training loop: no `.item()` or print of a tensor in "
        f"each micro-batch,{checks} pinned memory for copies to the GPU."
    )
