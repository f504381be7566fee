# SPDX-License-Identifier: Apache-2.0
"""What each finding of an analysis would gain."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from megatron.torch_trace.analysis.findings import by_gain
from megatron.torch_trace.analysis.findings.remedies import remedy_of
from megatron.torch_trace.analysis.replay.answers import UnreplayableError
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.analysis.run.candidates import candidate_of, check
from megatron.torch_trace.analysis.run.graphs import Graphs, are_few
from megatron.torch_trace.analysis.run.rank_pool import raw_bytes
from megatron.torch_trace.analysis.run.recorded import Recorded
from megatron.torch_trace.errors import UsageError

logger = logging.getLogger(__name__)

_CHEAP_BYTES = 512 << 20
"""Traces of so many bytes, uncompressed, are replayed without being asked to."""


def are_cheap(traces: Sequence[Path]) -> bool:
    """Whether gains cost little: some traces are read anyway, and they are small."""
    return are_few(traces) and sum(map(raw_bytes, traces)) <= _CHEAP_BYTES


def with_gains(analysis: Analysis, known: Recorded) -> Analysis:
    """The same analysis, its findings with gains as far as graphs tell them, by gain.

    Args:
        analysis: of the ranks.
        known: the ranks.
    """
    graphs = Graphs(known)
    try:
        findings = [_with_gain(one, graphs) for one in analysis.findings]
    except Exception as error:
        # Whatever is in the traces, the analysis is the same without gains.
        logger.warning(
            "torch-trace: gains are unknown, since the graph failed (%s: %s).",
            type(error).__name__,
            error,
        )
        return analysis
    return replace(analysis, findings=by_gain(findings))


def _with_gain(finding: Finding, graphs: Graphs) -> Finding:
    changes = remedy_of(finding)
    if not changes:
        return finding
    try:
        _, graph = graphs.for_changes(changes)
        check(graph, changes)
        found = candidate_of(graph, changes, finding.code)
    except (UsageError, UnreplayableError):
        # What graphs cannot tell has no gain; the finding is none the worse.
        return finding
    return replace(
        finding, gain_ns=found.gain_ns, gain_error_ns=found.error_ns, change=found.change
    )
