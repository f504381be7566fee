# SPDX-License-Identifier: Apache-2.0
"""The GPU is idle although the next work is launched: on its way, or held up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from statistics import mean

from megatron.torch_trace.analysis.findings.host.launch_bound import for_launches
from megatron.torch_trace.analysis.findings.shares import known, mean_share, over, severity
from megatron.torch_trace.analysis.findings.undisturbed_idle import (
    UndisturbedIdle,
    of_all,
    what_remains,
)
from megatron.torch_trace.analysis.host.not_started import NotStarted
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.wording import counted, duration, percent

SLUG = "launched_not_started"
_LEAST = 0.10
"""Of the undisturbed iteration; of the window where that is unknown."""
_LEAST_IF_FIRST = 0.05
"""The same, where nothing else makes the GPU idle longer."""
_MOSTLY = 0.5

_OUTSIDE = (
    "Look for what holds up work that is launched: another process on the same GPU (`nvidia-smi`, "
    "MPS, time slicing), work of other GPUs of this process that it waits for, callbacks on the "
    "host, copies from memory that is not pinned."
)
_EVENTS = (
    "Look at what the stream waits for (`cudaStreamWaitEvent`): work of another stream or another "
    "GPU, or a callback on the host, must be done first; launch that earlier, or drop the "
    "dependency."
)


def rule(analysis: Analysis) -> Iterator[Finding]:
    """All ranks together, with the longest wait of all."""
    ranks = [rank for rank in known(analysis) if rank.window_ns]
    if not ranks:
        return
    recorded = mean_share(ranks, lambda rank: rank.host.idle.gpu_ns)
    share = mean(UndisturbedIdle.of(rank).gpu_share for rank in ranks)
    told = [(rank, rank.host.not_started) for rank in ranks if rank.host.not_started]
    if not told or share < _LEAST_IF_FIRST:
        return
    rank, worst = max(told, key=lambda one: one[1].time_ns)
    held = sum(one.held_ns for _, one in told) / sum(one.time_ns for _, one in told)
    # Where most of it is launches on their way, `launch_bound` says what to do if that is more.
    if not _is_first(ranks, share) and (share < _LEAST or held < _MOSTLY):
        return
    yield Finding(
        SLUG,
        severity(share),
        f"The GPU is idle for {percent(recorded)} of the window although the next work is launched "
        f"already ({over(ranks)})."
        f"{what_remains(ranks, attrgetter('explained_gpu_ns'), share)} "
        f"{_text(rank, worst, held)}",
        {
            "share": share,
            "recorded_share": recorded,
            "explained_ns": {r: one.explained_gpu_ns for r, one in of_all(ranks).items()},
            "idle_ns": {rank.rank: one.time_ns for rank, one in told},
            "pieces": {rank.rank: one.pieces for rank, one in told},
            "median_ns": worst.median_ns,
            "held_share": held,
            "held_by_event_ns": sum(one.held_by_event_ns for _, one in told),
        },
        _advice(ranks, [one for _, one in told], held),
        share,
        (rank.rank, worst.longest) if worst.longest else None,
    )


def _is_first(ranks: Sequence[RankResult], share: float) -> bool:
    others = ("data_ns", "sync_ns", "unknown_ns")
    return mean(UndisturbedIdle.of(rank).cpu_share for rank in ranks) <= share and all(
        mean_share(ranks, lambda rank, n=name: getattr(rank.host.idle, n)) <= share  # type: ignore[misc]
        for name in others
    )


def _text(rank: RankResult, worst: NotStarted, held: float) -> str:
    if held < _MOSTLY:
        return (
            f"On {rank.name} that happens {counted(worst.pieces, 'time')}, "
            f"{duration(worst.median_ns)} each (median): the GPU waits while launches are on their "
            "way, because the CPU is not ahead of the GPU."
        )
    most = duration(worst.longest.duration_ns) if worst.longest else "long"
    return (
        f"{percent(held)} of that is in waits of 50 us or more, longer than a launch is on its "
        f"way; on {rank.name} {worst.work} waits longest, {most}."
    )


def _advice(ranks: Sequence[RankResult], told: Sequence[NotStarted], held: float) -> str:
    if held < _MOSTLY:
        return for_launches(ranks)
    by_event = sum(one.held_by_event_ns for one in told)
    return _EVENTS if by_event >= _MOSTLY * sum(one.held_ns for one in told) else _OUTSIDE
