# SPDX-License-Identifier: Apache-2.0
"""The GPU has nothing to do because the CPU has not launched it yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from statistics import mean, median

from megatron.torch_trace.analysis.findings.examples import most_idle
from megatron.torch_trace.analysis.findings.host.holders import Held, held_by
from megatron.torch_trace.analysis.findings.host.lost_lead import lost_lead
from megatron.torch_trace.analysis.findings.megatron_flags import flag_value, flags, has_flag
from megatron.torch_trace.analysis.findings.shares import (
    by_iteration,
    computing_kernels,
    known,
    over,
    severity,
)
from megatron.torch_trace.analysis.findings.undisturbed_idle import (
    UndisturbedIdle,
    of_all,
    what_remains,
)
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.analysis.timeline.moment import Example
from megatron.torch_trace.wording import percent

SLUG = "launch_bound"
_LEAST = 0.10
"""Of the undisturbed iteration; where that is unknown, of the window, in which the profiler itself
makes a few percent of it, by slowing launches down."""


def rule(analysis: Analysis) -> Iterator[Finding]:
    """On most ranks, or on a few that are so much idle that the mean shows it."""
    ranks = [rank for rank in known(analysis) if rank.window_ns]
    if not ranks:
        return
    shares = [_remaining(rank) for rank in ranks]
    # The median, so that one rank whose CPU is held up does not make all of them launch-bound.
    if median(shares) >= _LEAST:
        yield _finding(ranks, median(shares))
    elif mean(shares) >= _LEAST:
        few = [rank for rank in ranks if _remaining(rank) >= _LEAST]
        yield _finding(few, mean(map(_remaining, few)))


def _remaining(rank: RankResult) -> float:
    return UndisturbedIdle.of(rank).cpu_share


def _finding(ranks: Sequence[RankResult], typical: float) -> Finding:
    """Shares are means, as in the first lines of the report: one thing has one number.

    Args:
        ranks: that wait for their CPU.
        typical: the share by which it is judged beside other findings.
    """
    held = held_by(ranks)
    lead = None if held else lost_lead(ranks)
    launches = for_launches(ranks)
    recorded = mean(rank.host.idle.cpu_ns / rank.window_ns for rank in ranks)
    share = mean(_remaining(rank) for rank in ranks)
    remains = what_remains(ranks, attrgetter("explained_cpu_ns"), share)
    kernels, tiny = computing_kernels(ranks), sum(rank.host.tiny_kernels for rank in ranks)
    delays = [
        rank.launches.delay_median_ns for rank in ranks if rank.launches.delay_median_ns is not None
    ]
    return Finding(
        SLUG,
        severity(typical),
        f"The GPU is idle for {percent(recorded)} of the window because the CPU has not launched "
        f"the next kernel yet ({over(ranks)}).{remains} "
        f"{held.text if held else _launches(ranks, kernels, tiny)}{lead.text if lead else ''}",
        {
            "share": share,
            "recorded_share": recorded,
            "cpu_idle_ns": {rank.rank: rank.host.idle.cpu_ns for rank in ranks},
            "explained_ns": {r: one.explained_cpu_ns for r, one in of_all(ranks).items()},
            "kernels": kernels,
            "kernels_under_5us": tiny,
            "launch_delay_median_ns": delays,
            **(held.evidence if held else {}),
            **({"waits_in": lead.call, "waits_caller": lead.caller} if lead else {}),
        },
        held.advice if held else f"{lead.advice} {launches}" if lead else launches,
        typical,
        _example(ranks, held),
    )


def _launches(ranks: Sequence[RankResult], kernels: int, tiny: int) -> str:
    steps, what = by_iteration(ranks)
    few = f", {percent(tiny / kernels)} of them shorter than 5 us" if tiny else ""
    return (
        f"The job is launch-bound: {kernels / len(ranks) / steps:,.0f} compute kernels in "
        f"{what}{few}."
    )


def _example(ranks: Sequence[RankResult], held: Held | None) -> Example | None:
    if held is not None and held.example is not None:
        return held.example
    return most_idle(max(ranks, key=lambda rank: rank.host.idle.cpu_ns))


def for_launches(ranks: Sequence[RankResult]) -> str:
    """How to launch less, with what is not on yet."""
    parts = []
    graphs = flag_value(ranks, "--cuda-graph-impl") or "none"
    if graphs == "none" and not has_flag(ranks, "--enable-cuda-graph"):
        flag = flags(ranks, "`--cuda-graph-impl`; before core 0.15 `--enable-cuda-graph`")
        parts.append(f"capture the iteration in CUDA graphs {flag}")
    if flag_value(ranks, "--transformer-impl") != "transformer_engine":
        parts.append(f"fuse kernels {flags(ranks, '`--transformer-impl transformer_engine`')}")
    parts.append(f"use larger micro-batches {flags(ranks, '`--micro-batch-size`')}")
    advice = f"Launch less: {', '.join(parts)}."
    if any(rank.slowdown is not None for rank in ranks):
        return advice
    return (
        f"{advice} The profiler slows launches down: compare with the iteration time without the "
        "profiler."
    )
