# SPDX-License-Identifier: Apache-2.0
"""What each finding of an analysis would gain."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from megatron.torch_trace.analysis.findings import by_gain
from megatron.torch_trace.analysis.findings.shares import milliseconds
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.analysis.run.candidates import Candidate, remedy_in
from megatron.torch_trace.analysis.run.graphs import Graphs, are_few
from megatron.torch_trace.analysis.run.rank_pool import raw_bytes
from megatron.torch_trace.analysis.run.recorded import Recorded
from megatron.torch_trace.files.selection import listed
from megatron.torch_trace.wording import counted

logger = logging.getLogger(__name__)

_MOST_CAUSES = 3
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
    found = remedy_in(graphs, finding)
    if found is None:
        return finding
    return replace(
        finding,
        title=finding.title + _where(found),
        evidence={**finding.evidence, **_causes(found)},
        gain_ns=found.gain_ns,
        gain_error_ns=found.error_ns,
        change=found.change,
    )


def _causes(found: Candidate) -> dict[str, object]:
    return {"causes": [asdict(one) for one in found.causes]} if found.causes else {}


def _where(found: Candidate) -> str:
    """Which work of the rank took far longer, with a blank before it; nothing if none did."""
    if not found.causes:
        return ""
    longest = found.causes[0]
    total = sum(one.time_ns for one in found.causes)
    names = listed([f"`{one.name}`" for one in found.causes], most=_MOST_CAUSES)
    what = f" ({longest.function})" if longest.function else ""
    times = counted(sum(one.count for one in found.causes), "stretch", "stretches")
    return f" Rank {longest.rank} takes {milliseconds(total)} longer in {times} of {names}{what}."
