# SPDX-License-Identifier: Apache-2.0
"""The change that takes away what a finding is about, for a graph to say what that would gain."""

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

_REMEDIES: Mapping[str, Callable[[Finding], Change]] = {
    "straggler": lambda finding: RankAsMedian(int(finding.evidence["rank"])),
    "exposed_communication": lambda finding: CommunicationScaled(_dimension(finding), 0.0),
    "launch_bound": lambda _: LaunchScaled(0.0),
    "synchronisation": lambda _: WithoutSynchronisation(),
    "memory_copies": lambda _: CopiesScaled("all", 0.0),
    "uneven_stages": lambda _: StagesBalanced(),
    "layer_imbalance": lambda _: StagesBalanced(),
}
"""Slug of a finding -> its change. What no change of a graph takes away is not here."""


def remedy_of(finding: Finding) -> Change | None:
    """The change; None where a graph cannot take the finding's cause away."""
    for slug, change in _REMEDIES.items():
        if finding.code == slug or finding.code.startswith(f"{slug}_"):
            return change(finding)
    return None


def _dimension(finding: Finding) -> str:
    return str(finding.evidence.get("dimension") or finding.code.rpartition("_")[2])
