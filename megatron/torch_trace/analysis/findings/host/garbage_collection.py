# SPDX-License-Identifier: Apache-2.0
"""Python's garbage collector stops the CPU that launches the GPU's work.

Where spans show the collections, what counts is how long the GPU is idle meanwhile; else, how long
they took, as capture has counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from megatron.torch_trace.analysis.findings.host.garbage_collector import (
    LEAST,
    LEAST_STOPPED,
    against_collections,
    interval_of,
    lost_to_collections,
    shows_all,
    stopped_share,
)
from megatron.torch_trace.analysis.findings.shares import an_iteration, known, severity
from megatron.torch_trace.analysis.host.garbage_collections import COLLECTOR
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.analysis.timeline.moment import Moment
from megatron.torch_trace.wording import counted, duration, percent

SLUG = "garbage_collection"


def rule(analysis: Analysis) -> Iterator[Finding]:
    """One for all ranks whose traces show collections, else the rank that is stopped longest."""
    found = _idle(analysis) or _stopped(analysis)
    if found is not None:
        yield found


def _idle(analysis: Analysis) -> Finding | None:
    ranks = [rank for rank in known(analysis) if rank.window_ns and rank.host.collections]
    recorded = lost_to_collections(ranks)
    share = recorded * _of_training(ranks)
    if share < LEAST:
        return None
    told = {rank.rank: one for rank in ranks if (one := rank.host.collections)}
    stopped = [rank for rank in ranks if told[rank.rank].idle_ns]
    worst = max(stopped, key=lambda rank: _length(told[rank.rank].longest))
    longest = told[worst.rank].longest
    times = sum(told[rank.rank].times for rank in stopped)
    return Finding(
        SLUG,
        severity(share),
        f"For {percent(recorded)} of the window {_whose(ranks)} while {COLLECTOR} runs: "
        f"{counted(times, 'collection')}{_where(ranks, stopped)}, the longest "
        f"{duration(_length(longest))}.{_in_training(ranks, share, recorded)}",
        {
            "share": share,
            "recorded_share": recorded,
            "collections": {rank.rank: told[rank.rank].times for rank in stopped},
            "idle_ns": {rank.rank: told[rank.rank].idle_ns for rank in stopped},
            "longest_ns": _length(longest),
        },
        against_collections(ranks),
        share,
        (worst.rank, longest) if longest else None,
    )


def _stopped(analysis: Analysis) -> Finding | None:
    ranks = [
        rank
        for rank in analysis.ranks
        if not shows_all(rank) and stopped_share(rank) >= LEAST_STOPPED
    ]
    if not ranks:
        return None
    worst = max(ranks, key=stopped_share)
    pauses, share = worst.collector, stopped_share(worst)
    most = f", the most of {len(ranks)} ranks" if len(ranks) > 1 else ""
    return Finding(
        SLUG,
        severity(share),
        f"{COLLECTOR} stops the CPU of {worst.name} for {an_iteration(pauses['time_ns'], worst)}, "
        f"{percent(share)} of the window, in {counted(pauses['collections'], 'collection')}{most}; "
        f"the longest takes {duration(pauses['longest_ns'])}.",
        {
            "rank": worst.rank,
            "share": share,
            "time_ns": {rank.rank: rank.collector["time_ns"] for rank in ranks},
            "longest_ns": {rank.rank: rank.collector["longest_ns"] for rank in ranks},
        },
        against_collections(ranks),
        share,
    )


def _length(moment: Moment | None) -> int:
    return moment.duration_ns if moment else 0


def _of_training(ranks: Sequence[RankResult]) -> float:
    """A window that holds one of the collections that Megatron makes every N iterations is shorter
    than N iterations, and says so much more than is true of training."""
    steps = max((len(rank.steps) for rank in ranks), default=0)
    interval = interval_of(ranks)
    return steps / interval if interval and 0 < steps < interval else 1.0


def _in_training(ranks: Sequence[RankResult], share: float, recorded: float) -> str:
    if share == recorded:
        return ""
    return f" One window in {interval_of(ranks):,} iterations: {percent(share)} of training."


def _whose(ranks: Sequence[RankResult]) -> str:
    if len(ranks) == 1:
        return f"the GPU of {ranks[0].name} is idle"
    each = ", in each iteration that of the rank that loses most," if ranks[0].steps else ""
    return f"a GPU{each} is idle"


def _where(ranks: Sequence[RankResult], stopped: Sequence[RankResult]) -> str:
    return f" on {len(stopped):,} of {len(ranks):,} ranks" if len(ranks) > 1 else ""
