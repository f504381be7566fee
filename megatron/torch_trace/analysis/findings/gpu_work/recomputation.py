# SPDX-License-Identifier: Apache-2.0
"""The forward pass is run again inside the backward pass, to hold fewer activations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from megatron.torch_trace.analysis.findings.examples import largest
from megatron.torch_trace.analysis.findings.megatron_flags import flag_value, flags, has_flag
from megatron.torch_trace.analysis.findings.shares import known, mean_share, over, severity
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.wording import percent

SLUG = "recomputation"
_LEAST = 0.05
"""Of the window: for less nobody gives up memory. Recomputing only the attention's core stays below
it in most models; recomputing whole layers takes a quarter of their time."""


def rule(analysis: Analysis) -> Iterator[Finding]:
    """What modules launched in it; of traces without spans of modules nothing is known."""
    ranks = [rank for rank in known(analysis) if rank.module_account is not None]
    share = mean_share(ranks, _time)
    if share < _LEAST:
        return
    rows = [(rank, row) for rank in ranks for row in rank.modules if row.recompute_self_ns]
    totals: dict[str, int] = {}
    for _, row in rows:
        totals[row.type] = totals.get(row.type, 0) + row.recompute_self_ns
    most = max(totals, key=lambda name: totals[name])
    yield Finding(
        SLUG,
        severity(share),
        f"Recomputation of activations takes {percent(share)} of the window ({over(ranks)}), most "
        f"of that time in {most}.",
        {
            "share": share,
            "time_ns": {rank.rank: _time(rank) for rank in ranks},
            "by_class_ns": dict(sorted(totals.items(), key=lambda item: -item[1])),
        },
        for_recomputation(ranks),
        share,
        largest((row.recompute_self_ns, rank.rank, row.longest) for rank, row in rows),
    )


def for_recomputation(ranks: Sequence[RankResult]) -> str:
    """How to recompute less than the run does now; memory decides whether that is possible."""
    memory = (
        "if memory is left (record with `--torch-profile-memory-snapshot`, and ask "
        "`torch-trace memory`)"
    )
    whole = flag_value(ranks, "--recompute-granularity")
    if whole == "selective" or has_flag(ranks, "--recompute-activations"):
        fewer = flags(ranks, "`--recompute-modules`")
        return f"Recompute fewer kinds of modules {fewer}, {memory}."
    parts = flags(
        ranks,
        "`--recompute-granularity selective`, or `--recompute-method block` with a smaller "
        "`--recompute-num-layers`",
    )
    return f"Recompute only the attention, or fewer layers {parts}, {memory}."


def _time(rank: RankResult) -> int:
    return sum(row.recompute_self_ns for row in rank.modules)
