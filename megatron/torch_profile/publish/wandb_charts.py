# SPDX-License-Identifier: Apache-2.0
"""A window's tables and its figure, as W&B shows them."""

from __future__ import annotations

from typing import Any

from megatron.torch_profile.publish.window_summary import (
    FINDING_COLUMNS,
    RANK_COLUMNS,
    WindowSummary,
)
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_NAMES, BREAKDOWN_PARTS
from megatron.torch_trace.wording import iterations


def charts(summary: WindowSummary) -> dict[str, Any]:
    """W&B's objects by key: findings and the breakdown of each rank as tables, its mean as bars."""
    import wandb

    found: dict[str, Any] = {
        "profile/findings": wandb.Table(list(FINDING_COLUMNS), summary.findings),
        "profile/breakdown_by_rank": wandb.Table(list(RANK_COLUMNS), summary.ranks),
    }
    shares = [
        [BREAKDOWN_NAMES[part], summary.scalars[f"profile/{part}_pct"]]
        for part in BREAKDOWN_PARTS
        if f"profile/{part}_pct" in summary.scalars
    ]
    if shares:
        found["profile/breakdown"] = wandb.plot.bar(
            wandb.Table(["part", "share"], shares),
            "part",
            "share",
            title=f"Where the time of {iterations(summary.iterations)} went (%)",
        )
    return found
