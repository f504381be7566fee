# SPDX-License-Identifier: Apache-2.0
"""The ranks that a finding of stragglers is about."""

from __future__ import annotations

from megatron.torch_trace.analysis.results.analysis import Finding


def late_ranks(finding: Finding) -> list[int]:
    """Of ranks that are late for the same reason all, since one alone would gain nothing."""
    return [int(rank) for rank in finding.evidence.get("ranks") or [finding.evidence["rank"]]]
