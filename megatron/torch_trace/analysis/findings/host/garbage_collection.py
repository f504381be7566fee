# SPDX-License-Identifier: Apache-2.0
"""Python's collector of cycles: it stops one CPU after the other, each in another iteration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from megatron.torch_trace.analysis.findings.megatron_flags import flags, has_flag
from megatron.torch_trace.analysis.findings.shares import an_iteration, severity
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.wording import counted, duration, percent

SLUG = "garbage_collection"
_LEAST = 0.01
"""Of a rank's window: ranks pause in turn, and each pause holds up all of them."""
_FLAG = "--manual-gc"


def rule(analysis: Analysis) -> Iterator[Finding]:
    """By what capture counted; the rank with most of it."""
    ranks = [rank for rank in analysis.ranks if _share(rank) >= _LEAST]
    if not ranks:
        return
    worst = max(ranks, key=_share)
    pauses, share = worst.collector, _share(worst)
    longest = f"; the longest takes {duration(pauses['longest_ns'])}"
    most = f", the most of {len(ranks)} ranks" if len(ranks) > 1 else ""
    yield Finding(
        SLUG,
        severity(share),
        f"Python's garbage collector stops the CPU of {worst.name} for "
        f"{an_iteration(pauses['time_ns'], worst)}, {percent(share)} of the window, in "
        f"{counted(pauses['collections'], 'collection')}{most}"
        f"{longest if pauses['collections'] > 1 else ''}.",
        {
            "rank": worst.rank,
            "share": share,
            "time_ns": {rank.rank: rank.collector["time_ns"] for rank in ranks},
            "longest_ns": {rank.rank: rank.collector["longest_ns"] for rank in ranks},
        },
        _advice(ranks),
        share,
    )


def for_collector(ranks: Sequence[RankResult]) -> str:
    """What to look at, with the flag against it; "" where that flag is given already, or where the
    collector is known to cost next to nothing."""
    if has_flag(ranks, _FLAG) or all(rank.collector and _share(rank) < _LEAST for rank in ranks):
        return ""
    return f"Python's garbage collector {flags(ranks, f'`{_FLAG}`')}"


def _advice(ranks: Sequence[RankResult]) -> str:
    if has_flag(ranks, _FLAG):
        interval = flags(ranks, "`--manual-gc-interval`")
        return (
            f"Collect less often {interval}, and call `gc.freeze()` once when everything is set "
            "up, so that the collector no longer looks at what lives as long as the training."
        )
    return (
        f"Let all ranks collect at the same time and seldom {flags(ranks, f'`{_FLAG}`')}, or call "
        "`gc.freeze()` once when everything is set up."
    )


def _share(rank: RankResult) -> float:
    return rank.collector.get("time_ns", 0) / rank.window_ns if rank.window_ns else 0.0
