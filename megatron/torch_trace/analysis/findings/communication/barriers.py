# SPDX-License-Identifier: Apache-2.0
"""Timers that synchronise all ranks destroy the overlap that is being measured."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.examples import of_communication
from megatron.torch_trace.analysis.findings.megatron_flags import flag_value, flags
from megatron.torch_trace.analysis.findings.shares import (
    by_iteration,
    known,
    mean_share,
    over,
    severity,
)
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.wording import number, percent

SLUG = "barriers"
_LEAST = 0.01
"""Of the window; little, for it is lost for nothing."""


def rule(analysis: Analysis) -> Iterator[Finding]:
    """Barriers that cost time, or that Megatron's timers make."""
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
    if share < _LEAST and not (level and calls):
        return
    yield Finding(
        SLUG,
        severity(share),
        f"{number(calls / steps)} barrier{'s' * (calls != steps)} in {what} "
        f"take{'s' * (calls == steps)} {percent(share)} of {what.replace('each', 'the')} "
        f"({over(ranks)})" + (f", with `--timing-log-level {level}`." if level else "."),
        {"barriers_per_step": calls / steps, "exposed_ns": exposed, "share": share},
        "Take barriers out of the training loop while you look at overlap "
        + flags(ranks, "`--timing-log-level 0`, or `--no-barrier-with-level-1-timing`")
        + "; timers that wait for all ranks are a common reason for barriers.",
        share,
        of_communication(analysis, lambda row: row.collective == "barrier"),
    )


def _timing_level(ranks: list[RankResult]) -> int:
    level = flag_value(ranks, "--timing-log-level") or ""
    return int(level) if level.isdecimal() else 0
