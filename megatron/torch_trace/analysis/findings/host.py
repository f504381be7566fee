# SPDX-License-Identifier: Apache-2.0
"""Findings about the CPU: launch-bound, synchronisations, data loader."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.shares import (
    known,
    mean_share,
    milliseconds,
    over,
    percent,
    severity,
)
from megatron.torch_trace.analysis.results import Analysis, Finding, RankResult

_LAUNCH_BOUND = 0.10
_DATA = 0.02
_SYNC = 0.03
_TINY = 0.5


def data_loader(analysis: Analysis) -> Iterator[Finding]:
    """The training loop waits in the data loader."""
    ranks = known(analysis)
    loading = [rank for rank in ranks if rank.host.data_loading]
    share = max((_data_share(rank) for rank in loading), default=0.0)
    if share < _DATA:
        return
    worst = max(loading, key=_data_share)
    steps = worst.host.data_loading
    time = sum(step.time_ns for step in steps)
    calls = sum(step.calls for step in steps)
    yield Finding(
        "data_loader",
        severity(share),
        f"The data loader takes {percent(share)} of the iteration on rank {worst.rank}: "
        f"{milliseconds(time / calls)} for each of {calls} batches, and the GPU is idle for "
        f"{milliseconds(sum(step.idle_ns for step in steps))} of it.",
        {
            "share": share,
            "rank": worst.rank,
            "steps": {step.step: step.time_ns for step in steps},
            "calls": calls,
            "idle_ns": sum(step.idle_ns for step in steps),
        },
        "Give it more workers (`--num-workers 8`), and look at the storage and at what the dataset "
        "does with each sample.",
        share,
    )


def _data_share(rank: RankResult) -> float:
    time = sum(step.time_ns for step in rank.host.data_loading)
    return time / rank.window_ns if rank.window_ns else 0.0


def launch_bound(analysis: Analysis) -> Iterator[Finding]:
    """The GPU has nothing to do because the CPU has not launched it yet."""
    ranks = known(analysis)
    share = mean_share(ranks, lambda rank: rank.host.idle.cpu_ns)
    if share < _LAUNCH_BOUND:
        return
    kernels = sum(row.calls for rank in ranks for row in rank.kernels)
    tiny = sum(rank.host.tiny_kernels for rank in ranks)
    steps = max((len(rank.steps) for rank in ranks), default=0) or 1
    delays = [
        rank.launches.delay_median_ns
        for rank in ranks
        if rank.launches.delay_median_ns is not None
    ]
    yield Finding(
        "launch_bound",
        severity(share),
        f"Launch-bound: the GPU is idle for {percent(share)} of the window because the CPU has not "
        f"launched the next kernel yet ({over(ranks)}; "
        f"{kernels / len(ranks) / steps:,.0f} kernels an iteration, {percent(tiny / kernels)} of "
        "them under 5 us).",
        {
            "share": share,
            "cpu_idle_ns": {rank.rank: rank.host.idle.cpu_ns for rank in ranks},
            "kernels": kernels,
            "kernels_under_5us": tiny,
            "launch_delay_median_ns": delays,
        },
        "Launch less: CUDA graphs (`--cuda-graph-impl`), fused kernels (`--transformer-impl "
        "transformer_engine`, `--use-flash-attn`), a larger `--micro-batch-size`.",
        share,
    )


def tiny_kernels(analysis: Analysis) -> Iterator[Finding]:
    """Many kernels that are shorter than their launch."""
    ranks = known(analysis)
    kernels = sum(row.calls for rank in ranks for row in rank.kernels)
    tiny = sum(rank.host.tiny_kernels for rank in ranks)
    if not kernels or tiny < _TINY * kernels:
        return
    share = mean_share(ranks, lambda rank: rank.host.tiny_kernels_ns)
    yield Finding(
        "tiny_kernels",
        "low",
        f"{percent(tiny / kernels)} of the {kernels:,} kernels are shorter than 5 us, together "
        f"{percent(share)} of the window ({over(ranks)}).",
        {"kernels": kernels, "kernels_under_5us": tiny, "share": share},
        "Fuse them: leave Megatron's fusions on, use `--transformer-impl transformer_engine`, and "
        "an optimizer that updates all tensors at once (Apex or Transformer Engine installed).",
        share,
    )


def synchronisation(analysis: Analysis) -> Iterator[Finding]:
    """The CPU waits for the GPU, and has to start anew each time."""
    ranks = known(analysis)
    share = mean_share(ranks, lambda rank: rank.host.idle.sync_ns)
    rows = [row for rank in ranks for row in rank.host.syncs]
    if share < _SYNC or not rows:
        return
    by_caller: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        entry = by_caller.setdefault((row.call, row.caller), [0, 0])
        entry[0] += row.calls
        entry[1] += row.time_ns
    steps = max((len(rank.steps) for rank in ranks), default=0) or 1
    each = len(ranks) * steps
    (call, caller), (calls, time) = max(by_caller.items(), key=lambda item: item[1][1])
    yield Finding(
        "synchronisation",
        severity(share),
        f"The GPU is idle for {percent(share)} of the window after the CPU had waited for it "
        f"({over(ranks)}); most of the waiting is {call} by {caller}, {calls / each:.3g} times and "
        f"{milliseconds(time / each)} in each iteration.",
        {
            "share": share,
            "syncs": [
                {"call": c, "caller": by, "calls": n, "time_ns": t}
                for (c, by), (n, t) in sorted(by_caller.items(), key=lambda item: -item[1][1])
            ],
        },
        "Take the synchronisation out of the loop: no `.item()` or print of a tensor in each "
        "micro-batch, `--no-check-for-nan-in-loss-and-grad`, pinned memory for copies to the GPU.",
        share,
    )


RULES = (data_loader, launch_bound, tiny_kernels, synchronisation)
