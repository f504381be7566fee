# SPDX-License-Identifier: Apache-2.0
"""torch.compile at work within the window, where all should be compiled: seconds of CPU."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.wording import counted

SLUG = "recompilations"


def rule(analysis: Analysis) -> Iterator[Finding]:
    """By what capture counted; the rank with most of it."""
    names = ("recompiles", "graph_breaks", "recompile_limit_hits")
    ranks = [rank for rank in analysis.ranks if any(rank.compile.get(name) for name in names)]
    if not ranks:
        return
    worst = max(ranks, key=lambda rank: [rank.compile.get(name, 0) for name in names])
    again, breaks, limits = (worst.compile.get(name, 0) for name in names)
    yield Finding(
        SLUG,
        "high" if any(rank.compile.get(names[-1]) for rank in ranks) else "medium",
        f"torch.compile was at work within the window: {_told(again, breaks, limits)} (rank "
        f"{worst.rank}{f', the most of {len(ranks)} ranks' if len(ranks) > 1 else ''}).",
        {name: {rank.rank: rank.compile.get(name, 0) for rank in ranks} for name in names},
        "See why with `TORCH_LOGS=recompiles,graph_breaks`; shapes that change need "
        "`mark_dynamic`, and a function at the limit runs without its fused kernels from then on.",
    )


def _told(again: int, breaks: int, limits: int) -> str:
    """What there was; nothing of what there was none of."""
    parts = (
        (again, counted(again, "recompilation")),
        (breaks, counted(breaks, "graph break")),
        (limits, f"{counted(limits, 'function')} at the recompile limit"),
    )
    return ", ".join(text for amount, text in parts if amount)
