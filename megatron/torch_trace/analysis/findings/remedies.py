# SPDX-License-Identifier: Apache-2.0
"""The changes that take away what a finding is about, for a graph to say what that would gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from megatron.torch_trace.analysis.replay.change import (
    Change,
    CommunicationScaled,
    CopiesScaled,
    LaunchScaled,
    RankAsMedian,
    StagesBalanced,
    WithoutSynchronisation,
)
from megatron.torch_trace.analysis.results.analysis import Finding

_REMEDIES: Mapping[str, Callable[[Finding], Change | tuple[Change, ...]]] = {
    "straggler": lambda finding: tuple(map(RankAsMedian, _late_ranks(finding))),
    "exposed_communication": lambda finding: CommunicationScaled(_dimension(finding), 0.0),
    "launch_bound": lambda _: LaunchScaled(0.0),
    "synchronisation": lambda _: WithoutSynchronisation(),
    "memory_copies": lambda _: CopiesScaled("all", 0.0),
    "uneven_stages": lambda _: StagesBalanced(),
    "layer_imbalance": lambda _: StagesBalanced(),
}
"""Slug of a finding -> its changes. What no change of a graph takes away is not here."""


def remedy_of(finding: Finding) -> tuple[Change, ...]:
    """The changes, together; none where a graph cannot take the finding's cause away."""
    for slug, change in _REMEDIES.items():
        if finding.code == slug or finding.code.startswith(f"{slug}_"):
            found = change(finding)
            return found if isinstance(found, tuple) else (found,)
    return ()


def _late_ranks(finding: Finding) -> list[int]:
    """Of ranks that are late for the same reason all, since one alone would gain nothing."""
    return [int(rank) for rank in finding.evidence.get("ranks") or [finding.evidence["rank"]]]


def _dimension(finding: Finding) -> str:
    return str(finding.evidence.get("dimension") or finding.code.rpartition("_")[2])
