# SPDX-License-Identifier: Apache-2.0
"""Python's collector of cycles: it stops one CPU after the other, each in another iteration."""

from __future__ import annotations

from collections.abc import Sequence

from megatron.torch_trace.analysis.findings.megatron_flags import (
    flag_value,
    flags,
    has_flag,
    is_megatron,
)
from megatron.torch_trace.analysis.host.garbage_collections import COLLECTOR
from megatron.torch_trace.analysis.results.analysis import RankResult

LEAST = 0.03
"""Of the window, that a GPU is idle because of collections: an iteration differs from the next by
as much."""
LEAST_STOPPED = 0.01
"""Of the window of one rank, that it is stopped, where the trace does not show what its GPU loses:
ranks pause in turn, and each pause holds up all of them."""

_FLAG, _INTERVAL = "--manual-gc", "--manual-gc-interval"
_FREEZE = "`gc.freeze()` before the training loop makes each collection shorter."


def for_collector(ranks: Sequence[RankResult]) -> str:
    """What to look at, with the flag against it, where it may be the cause.

    Returns:
        "" where that flag is given already, or the collector is known to cost next to nothing.
    """
    if all(map(shows_all, ranks)):
        cheap = lost_to_collections(ranks) < LEAST
    else:
        cheap = all(rank.collector and stopped_share(rank) < LEAST_STOPPED for rank in ranks)
    if cheap or has_flag(ranks, _FLAG):
        return ""
    return f"{COLLECTOR} {flags(ranks, f'`{_FLAG}`')}"


def shows_all(rank: RankResult) -> bool:
    """Whether its trace shows every collection, and what its GPU did meanwhile."""
    collections = rank.host.collections
    return rank.breakdown is not None and collections is not None and collections.unrecorded == 0


def stopped_share(rank: RankResult) -> float:
    """Part of the window in which the collector stopped the process, as capture measured it."""
    return rank.collector.get("time_ns", 0) / rank.window_ns if rank.window_ns else 0.0


def lost_to_collections(ranks: Sequence[RankResult]) -> float:
    """Part of the window in which some GPU is idle because of a collection, from 0 to 1.

    Ranks wait for each other in every iteration, so each iteration takes as much longer as on the
    rank that loses most in it, at least. Without steps it is the rank that loses most.

    Args:
        ranks: of which those count that have a window, and tell of collections.
    """
    told = [(one, rank) for rank in ranks if (one := rank.host.collections) and rank.window_ns]
    if not told:
        return 0.0
    steps = {len(one.idle_by_step) for one, _ in told}
    if len(steps) == 1 and 0 not in steps:
        lost = sum(max(one.idle_by_step[at] for one, _ in told) for at in range(steps.pop()))
    else:
        lost = max(one.idle_ns for one, _ in told)
    return min(1.0, lost * len(told) / sum(rank.window_ns for _, rank in told))


def interval_of(ranks: Sequence[RankResult]) -> int | None:
    """Iterations from one collection by Megatron to the next; None if it leaves them to Python, or
    never collects between two iterations."""
    given = flag_value(ranks, _INTERVAL) or ""
    return int(given) or None if has_flag(ranks, _FLAG) and given.isdecimal() else None


def against_collections(ranks: Sequence[RankResult]) -> str:
    """How to have fewer collections, and at which moments."""
    interval = interval_of(ranks)
    if interval is not None:
        return (
            f"Collect less often: this run does so every {interval:,} iterations (`{_INTERVAL}`). "
            f"{_FREEZE}"
        )
    if has_flag(ranks, _FLAG):
        return (
            f"Find out what calls `gc.collect()`: with `{_FLAG}` and no `{_INTERVAL}` Megatron "
            "itself collects only around an evaluation (`--no-manual-gc-eval` ends that); with "
            "stacks in the trace (`--torch-profile-with-stack`) the caller is around the span."
        )
    advice = (
        "Collect seldom, and on all ranks in the same iteration, instead of whenever Python does "
        f"{flags(ranks, f'`{_FLAG} {_INTERVAL} 100`')}: no rank then waits for another rank's "
        f"collector. {_FREEZE}"
    )
    if is_megatron(ranks):
        return advice
    return (
        f"{advice} In a loop of your own: `gc.disable()` before it, and `gc.collect()` in every "
        "hundredth iteration."
    )
