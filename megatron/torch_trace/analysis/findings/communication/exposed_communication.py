# SPDX-License-Identifier: Apache-2.0
"""Communication that nothing overlaps: one finding for each dimension that costs time."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.communication.dimensions import ADJECTIVES, IN_GRAPH, UNKNOWN
from megatron.torch_trace.analysis.findings.communication.call_names import calls_of
from megatron.torch_trace.analysis.findings.communication.overlap_advice import (
    UNDESCRIBED,
    for_exposed,
)
from megatron.torch_trace.analysis.findings.communication.slow_transfer import (
    FOR_SLOW,
    SlowTransfer,
    slow_transfer,
)
from megatron.torch_trace.analysis.findings.examples import of_communication
from megatron.torch_trace.analysis.findings.host.garbage_collector import for_collector
from megatron.torch_trace.analysis.findings.shares import known, mean_share, over, severity
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.wording import percent

SLUG = "exposed_communication"
_LEAST = 0.03
"""Of the window: an iteration differs from the next by as much."""
_MOSTLY = 0.6
"""From here on tuning the transfer cannot gain more than ending the waiting."""
_UNTOLD = ("pp", UNKNOWN)
"""Sends and receives, and calls of unknown groups, are not matched whoever has a trace."""

_WAITING = (
    "Find out why rank {rank} arrives late (last in {share} of the {calls}) before you tune the "
    "network: most of this is waiting, not transfer."
)
_CHANGING = (
    "Look for what holds up the CPUs of all ranks in turn (launches, Python code{collector}), or "
    "for uneven work (experts, sequence lengths): most of this is waiting, not transfer, and the "
    "rank that comes last changes."
)


def rule(analysis: Analysis) -> Iterator[Finding]:
    """One finding for each dimension that costs time."""
    ranks = known(analysis)
    for dimension in sorted({total.dimension for rank in ranks for total in rank.dimensions}):
        share = mean_share(ranks, lambda rank, d=dimension: _exposed(rank, d))  # type: ignore[misc]
        if share >= _LEAST:
            yield _finding(analysis, ranks, dimension, share)


def _finding(analysis: Analysis, ranks: list[RankResult], dimension: str, share: float) -> Finding:
    concerned = [r for r in ranks if any(t.dimension == dimension for t in r.dimensions)]
    waiting = _waiting_share(concerned, dimension)
    mostly_waits = waiting is not None and waiting >= _MOSTLY
    there = not _is_rank_lacking(analysis, ranks)
    slow = None if mostly_waits else slow_transfer(concerned, dimension, all_there=there)
    return Finding(
        f"{SLUG}_{dimension}",
        severity(share),
        f"{_name(dimension, concerned)} is exposed for {percent(share)} of the window "
        f"({over(ranks)}){_tail(analysis, ranks, dimension, waiting)}.{slow.text if slow else ''}",
        {
            "dimension": dimension,
            "share": share,
            "exposed_ns": {rank.rank: _exposed(rank, dimension) for rank in concerned},
            "waiting_share": waiting,
            **({"busbw_gbps": slow.busbw_gbps, "collective": slow.collective} if slow else {}),
        },
        _waiting(analysis, dimension) if mostly_waits else _transfer(dimension, ranks, slow),
        share,
        of_communication(analysis, lambda row: row.dimension == dimension),
    )


def _name(dimension: str, ranks: list[RankResult]) -> str:
    if dimension != UNKNOWN:
        return f"{ADJECTIVES.get(dimension, dimension).capitalize()} communication"
    groups = named_groups(ranks)
    if not groups and any(row.group == IN_GRAPH for rank in ranks for row in rank.communication):
        return "Communication that CUDA graphs launched, of unknown process groups,"
    if not groups:
        return "Communication of an unknown process group"
    more = len(groups) - 1
    first = groups[0].removeprefix("group ")
    return f"Communication of the process group {first}" + (f" and {more} more" if more else "")


def named_groups(ranks: list[RankResult]) -> list[str]:
    """Process groups that the traces name, but whose parallel dimension nobody knows."""
    exposed: dict[str, int] = {}
    for rank in ranks:
        for row in rank.communication:
            if row.dimension == UNKNOWN and row.group not in (UNKNOWN, UNDESCRIBED, IN_GRAPH):
                exposed[row.group] = exposed.get(row.group, 0) + row.exposed_ns
    return sorted(exposed, key=lambda group: (-exposed[group], group))


def _tail(
    analysis: Analysis, ranks: list[RankResult], dimension: str, waiting: float | None
) -> str:
    if waiting is not None:
        return f"; {percent(waiting)} of that communication is waiting for other ranks"
    if _is_rank_lacking(analysis, ranks) and dimension not in _UNTOLD:
        return "; only traces of the other ranks show how much of that is waiting"
    return ""


def _is_rank_lacking(analysis: Analysis, ranks: list[RankResult]) -> bool:
    """Whether the job has ranks without a trace here, for whom these may wait."""
    return any((rank.world_size or 1) > len(analysis.ranks) for rank in ranks)


def _exposed(rank: RankResult, dimension: str) -> int:
    return sum(t.exposed_ns for t in rank.dimensions if t.dimension == dimension)


def _waiting_share(ranks: list[RankResult], dimension: str) -> float | None:
    rows = [
        row
        for rank in ranks
        for row in rank.communication
        if row.dimension == dimension and row.wait_ns is not None
    ]
    time = sum(row.time_ns for row in rows)
    return min(1.0, sum(row.wait_ns or 0 for row in rows) / time) if time else None


def _transfer(dimension: str, ranks: list[RankResult], slow: SlowTransfer | None) -> str:
    """What to do about the transfer itself: a slow link first, then overlap."""
    overlap = for_exposed(dimension, ranks)
    return f"{FOR_SLOW} {overlap}" if slow else overlap


def _waiting(analysis: Analysis, dimension: str) -> str:
    there = [one for one in analysis.stragglers if one.dimension == dimension]
    worst = max(there, key=lambda one: (one.share_there or 0, one.imposed_wait_ns), default=None)
    if worst is not None and worst.share_there is not None and worst.share_there >= _MOSTLY:
        calls = calls_of(dimension, worst.collective)
        return _WAITING.format(rank=worst.rank, share=percent(worst.share_there), calls=calls)
    collector = for_collector(analysis.ranks)
    return _CHANGING.format(collector=f", {collector}" if collector else "")
