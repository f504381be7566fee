# SPDX-License-Identifier: Apache-2.0
"""Findings about communication that nothing hides."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.advice import for_exposed
from megatron.torch_trace.analysis.findings.shares import (
    by_iteration,
    flag_value,
    known,
    mean_share,
    over,
    severity,
)
from megatron.torch_trace.analysis.findings.stragglers import DIMENSION_NAMES
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.wording import number, percent

_LEAST = 0.03
"""Of the window: an iteration differs from the next by as much."""
_MOSTLY = 0.6
"""From here on tuning the transfer cannot gain more than ending the waiting."""
_UNTOLD = ("pp", "unknown")
"""Sends and receives, and calls of unknown groups, are not matched whoever has a trace."""
_BARRIERS = 0.01
"""Of the window; little, for it is lost for nothing."""

_WAITING = "It is waiting, not transfer: find out why ranks arrive late before tuning the network."
_CHANGING = (
    "It is waiting, not transfer, and not always the same rank comes last: look for what "
    "holds up all CPUs in turn (launches, Python) or for uneven work (experts, sequence lengths)."
)


def exposed_communication(analysis: Analysis) -> Iterator[Finding]:
    """One finding for each dimension that costs time."""
    ranks = known(analysis)
    names = {total.dimension for rank in ranks for total in rank.dimensions}
    for dimension in sorted(names):
        concerned = [r for r in ranks if any(t.dimension == dimension for t in r.dimensions)]
        share = mean_share(ranks, lambda r, d=dimension: _exposed(r, d))  # type: ignore[misc]
        if share < _LEAST:
            continue
        waiting = _waiting_share(concerned, dimension)
        mostly_waits = waiting is not None and waiting >= _MOSTLY
        name = DIMENSION_NAMES.get(dimension, dimension).capitalize()
        tail = ""
        if waiting is not None:
            tail = f"; {percent(waiting)} of that communication is waiting for other ranks"
        elif dimension not in _UNTOLD and any(
            (rank.world_size or 1) > len(analysis.ranks) for rank in ranks
        ):
            tail = "; how much of that is waiting, only traces of the other ranks tell"
        yield Finding(
            f"exposed_communication_{dimension}",
            severity(share),
            f"{name} communication is exposed for {percent(share)} of the window "
            f"({over(ranks)}){tail}.",
            {
                "dimension": dimension,
                "share": share,
                "exposed_ns": {rank.rank: _exposed(rank, dimension) for rank in concerned},
                "waiting_share": waiting,
            },
            _waiting(analysis, dimension) if mostly_waits else for_exposed(dimension, ranks),
            share,
        )


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


def _waiting(analysis: Analysis, dimension: str) -> str:
    worst = [one for one in analysis.stragglers if one.dimension == dimension]
    return _WAITING if any((one.share_there or 0) >= _MOSTLY for one in worst) else _CHANGING


def barriers(analysis: Analysis) -> Iterator[Finding]:
    """Timers that synchronise all ranks destroy the overlap that is being measured."""
    ranks = known(analysis)
    rows = {
        rank.rank: [row for row in rank.communication if row.collective == "barrier"]
        for rank in ranks
    }
    steps, what = by_iteration(ranks)
    calls = max((sum(row.calls for row in found) for found in rows.values()), default=0)
    exposed = {rank: sum(row.exposed_ns for row in found) for rank, found in rows.items()}
    share = mean_share(ranks, lambda rank: exposed[rank.rank])
    level = _timing_level(ranks)
    if share < _BARRIERS and not (level and calls):
        return
    yield Finding(
        "barriers",
        severity(share),
        f"{number(calls / steps)} barrier{'s' * (calls != steps)} in each {what} "
        f"take{'s' * (calls == steps)} {percent(share)} of it "
        f"({over(ranks)})" + (f", with `--timing-log-level {level}`." if level else "."),
        {"barriers_per_step": calls / steps, "exposed_ns": exposed, "share": share},
        "While you look at overlap keep `--timing-log-level 0`, or give "
        "`--no-barrier-with-level-1-timing`: Megatron's timers wait for all ranks.",
        share,
    )


def _timing_level(ranks: list[RankResult]) -> int:
    level = flag_value(ranks, "--timing-log-level") or ""
    return int(level) if level.isdecimal() else 0


RULES = (exposed_communication, barriers)
