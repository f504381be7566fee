# SPDX-License-Identifier: Apache-2.0
"""Findings about the CPU: launch-bound, synchronisations, data loader."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from megatron.torch_trace.analysis.findings.advice import (
    for_data_loader,
    for_launches,
    for_synchronisation,
)
from megatron.torch_trace.analysis.findings.shares import (
    by_iteration,
    known,
    mean_share,
    milliseconds,
    over,
    severity,
    typically,
)
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.analysis.timeline.kernel_names import COMPUTE
from megatron.torch_trace.wording import number, percent

_LAUNCH_BOUND = 0.10
"""Of the window; the profiler itself makes a few percent of it, by slowing launches down."""
_DATA = 0.02
"""Of the window; a loader with a reserve takes next to nothing."""
_NO_RESERVE = 0.6
_HARDLY_ANY = 0.8
"""Use of the loader: a loop 1.7, or 1.25, times as fast without the profiler waits for it."""
_SYNC = 0.03
"""Of the window: an iteration differs from the next by as much."""
_TINY = 0.5
"""Of the kernels: then it is the rule in this job and not some of its operators."""
_LEAST_TINY = 100
"""Fewer than this cost nothing, whatever share of the kernels they are."""


def data_loader(analysis: Analysis) -> Iterator[Finding]:
    """The training loop waits in the data loader."""
    ranks = known(analysis)
    waiting = [rank for rank in ranks if _in_loader(rank)[1] > _DATA * rank.window_ns]
    worst = max(waiting, key=_in_loader, default=None)
    if worst is None:
        return
    idle, time = _in_loader(worst)
    steps = worst.host.data_loading
    calls = sum(step.calls for step in steps)
    # While the GPU works off what was launched before, waiting for data costs nothing.
    lost = idle / worst.window_ns
    yield Finding(
        "data_loader",
        severity(lost),
        f"The training loop waits in the data loader for {percent(time / worst.window_ns)} of the "
        f"iteration on rank {worst.rank}, {milliseconds(time / max(calls, 1))} for a batch; the "
        f"GPU is idle for {percent(idle / time)} of that time.",
        {
            "share": time / worst.window_ns,
            "idle_share": lost,
            "rank": worst.rank,
            "steps": {step.step: step.time_ns for step in steps},
            "calls": calls,
            "idle_ns": idle,
        },
        for_data_loader(ranks),
        lost,
    )


def _in_loader(rank: RankResult) -> tuple[int, int]:
    """How long the GPU was idle while the loop was in the loader, and how long the loop was."""
    steps = rank.host.data_loading
    return sum(step.idle_ns for step in steps), sum(step.time_ns for step in steps)


def data_loader_without_reserve(analysis: Analysis) -> Iterator[Finding]:
    """The loader keeps up only because the profiler slows the loop down."""
    supplied = [rank for rank in analysis.ranks if rank.host.loader_supply is not None]
    worst = max(supplied, key=_use, default=None)
    if worst is None or worst.host.loader_supply is None or _use(worst) < _NO_RESERVE:
        return
    supply = worst.host.loader_supply
    use = min(supply.use, 1.0)
    yield Finding(
        "data_loader_without_reserve",
        "high" if use >= _HARDLY_ANY else "medium",
        f"The data loader is busy for {percent(use)} of the time on rank {worst.rank}: it takes "
        f"{milliseconds(supply.batch_ns)} to make a batch, and the loop, slowed down by the "
        f"profiler, asks for one every {milliseconds(supply.interval_ns)}; without the profiler "
        "it may well wait for data.",
        {
            "rank": worst.rank,
            "batch_ns": supply.batch_ns,
            "interval_ns": supply.interval_ns,
            "batches": supply.batches,
            "use": supply.use,
        },
        for_data_loader(analysis.ranks),
        use,
    )


def _use(rank: RankResult) -> float:
    supply = rank.host.loader_supply
    return supply.use if supply is not None else 0.0


def launch_bound(analysis: Analysis) -> Iterator[Finding]:
    """The GPU has nothing to do because the CPU has not launched it yet."""
    ranks = known(analysis)
    # The median, so that one rank whose CPU is held up does not make all of them launch-bound.
    shares = [rank.host.idle.cpu_ns / rank.window_ns for rank in ranks if rank.window_ns]
    share = median(shares) if shares else 0.0
    if share < _LAUNCH_BOUND:
        return
    kernels, tiny = _computing_kernels(ranks), sum(rank.host.tiny_kernels for rank in ranks)
    steps, what = by_iteration(ranks)
    few = f", {percent(tiny / kernels)} of them under 5 us" if tiny else ""
    each = f"{kernels / len(ranks) / steps:,.0f} compute kernels in each {what}{few}"
    delays = [
        rank.launches.delay_median_ns for rank in ranks if rank.launches.delay_median_ns is not None
    ]
    yield Finding(
        "launch_bound",
        severity(share),
        f"Launch-bound: the GPU is idle for {percent(share)} of the window because the CPU has not "
        f"launched the next kernel yet ({typically(ranks)}; {each}).",
        {
            "share": share,
            "cpu_idle_ns": {rank.rank: rank.host.idle.cpu_ns for rank in ranks},
            "kernels": kernels,
            "kernels_under_5us": tiny,
            "launch_delay_median_ns": delays,
        },
        for_launches(ranks),
        share,
    )


def tiny_kernels(analysis: Analysis) -> Iterator[Finding]:
    """Many kernels that are shorter than their launch."""
    ranks = known(analysis)
    kernels, tiny = _computing_kernels(ranks), sum(rank.host.tiny_kernels for rank in ranks)
    if tiny < max(_TINY * kernels, _LEAST_TINY):
        return
    share = mean_share(ranks, lambda rank: rank.host.tiny_kernels_ns)
    yield Finding(
        "tiny_kernels",
        "low",
        f"{percent(tiny / kernels)} of the {kernels:,} compute kernels are shorter than 5 us, "
        f"together "
        f"{percent(share)} of the window ({over(ranks)}).",
        {"kernels": kernels, "kernels_under_5us": tiny, "share": share},
        "Fuse them: leave Megatron's fusions on, use `--transformer-impl transformer_engine`, and "
        "an optimizer that updates all tensors at once (Apex or Transformer Engine installed).",
        share,
    )


def _computing_kernels(ranks: list[RankResult]) -> int:
    return sum(row.calls for rank in ranks for row in rank.kernels if row.kind == COMPUTE)


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
    steps, what = by_iteration(ranks)
    each = len(ranks) * steps
    (call, caller), (calls, time) = max(by_caller.items(), key=lambda item: item[1][1])
    yield Finding(
        "synchronisation",
        severity(share),
        f"The GPU is idle for {percent(share)} of the window after the CPU had waited for it "
        f"({over(ranks)}); most of the waiting is {call} by {caller}, {number(calls / each)} "
        f"times and {milliseconds(time / each)} in each {what}.",
        {
            "share": share,
            "syncs": [
                {"call": c, "caller": by, "calls": n, "time_ns": t}
                for (c, by), (n, t) in sorted(by_caller.items(), key=lambda item: -item[1][1])
            ],
        },
        for_synchronisation(call, ranks),
        share,
    )


RULES = (data_loader, data_loader_without_reserve, launch_bound, tiny_kernels, synchronisation)
