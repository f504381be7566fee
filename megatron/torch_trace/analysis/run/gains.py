# SPDX-License-Identifier: Apache-2.0
"""What each finding of an analysis would gain."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from megatron.torch_trace.analysis.communication.stragglers import Straggler
from megatron.torch_trace.analysis.findings import by_gain
from megatron.torch_trace.analysis.findings.remedies import remedy_of
from megatron.torch_trace.analysis.findings.shares import milliseconds, severity
from megatron.torch_trace.analysis.replay.answers import UnreplayableError
from megatron.torch_trace.analysis.replay.change import GpuAsMedian, RankAsMedian
from megatron.torch_trace.analysis.replay.early_replay import EarlyReplay
from megatron.torch_trace.analysis.replay.kernels.longest_path import CyclicGraphError
from megatron.torch_trace.analysis.replay.path.piece_names import TRAINING_LOOP
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.analysis.results.path_part import PathPart
from megatron.torch_trace.analysis.run.candidates import (
    MOST_ERROR,
    Candidate,
    candidate_of,
    missed_ns,
    remedy_in,
)
from megatron.torch_trace.analysis.run.graphs import Graphs, KernelAnswers, are_few
from megatron.torch_trace.analysis.run.rank_pool import raw_bytes
from megatron.torch_trace.analysis.run.recorded import Recorded
from megatron.torch_trace.files.selection import listed
from megatron.torch_trace.wording import counted

logger = logging.getLogger(__name__)

_MOST_CAUSES = 3
_STRAGGLER = "straggler"
_UNNAMED = "the training loop's thread outside of all spans"
_LEAST_HIDDEN = 0.02
"""Of the iteration, as for stragglers that are last."""
_CHEAP_BYTES = 512 << 20
"""Traces of so many bytes, uncompressed, are replayed without being asked to."""


def are_cheap(traces: Sequence[Path]) -> bool:
    """Whether gains cost little: some traces are read anyway, and they are small."""
    return are_few(traces) and sum(map(raw_bytes, traces)) <= _CHEAP_BYTES


def with_gains(analysis: Analysis, known: Recorded, early: EarlyReplay | None = None) -> Analysis:
    """The same analysis, its findings with gains as far as graphs tell them, by gain.

    Args:
        analysis: of the ranks.
        known: the ranks.
        early: their graph of kernels, perhaps begun.

    Returns:
        The analysis; a gain and its error are ns an iteration, None where no graph tells them. If a
        graph fails, the analysis as it was, with a warning. Source: docs/computed.md, "Gains and
        slack".
    """
    graphs = Graphs(known, early=early)
    try:
        findings = [_with_gain(one, graphs) for one in analysis.findings]
        findings += _hidden_stragglers(findings, graphs, analysis.stragglers)
        path = _path(graphs)
    except (CyclicGraphError, OverflowError):
        logger.warning(
            "torch-trace: gains are unknown, since times in these traces contradict each other."
        )
        return analysis
    except Exception as error:
        # Whatever is in the traces, the analysis is the same without gains.
        logger.warning(
            "torch-trace: gains are unknown, since the graph failed (%s: %s).",
            type(error).__name__,
            error,
        )
        return analysis
    return replace(
        analysis, findings=by_gain(findings, analysis.summary.iteration_ns), critical_path=path
    )


def _path(graphs: Graphs) -> tuple[PathPart, ...]:
    """Of the recorded steps; nothing by a graph that misses them."""
    with suppress(UnreplayableError):
        graph = graphs.kernels()
        if missed_ns(graph) <= MOST_ERROR * graph.recorded_ns:
            pieces = graph.replay.critical_path()
            return tuple(
                PathPart(p.rank, p.kind, p.name, p.time_ns, p.count, p.longest) for p in pieces
            )
    return ()


def _with_gain(finding: Finding, graphs: Graphs) -> Finding:
    found = remedy_in(graphs, finding)
    if found is None:
        return finding
    return replace(
        finding,
        title=finding.title + _where(found, graphs),
        evidence={**finding.evidence, **_causes(found)},
        gain_ns=found.gain_ns,
        gain_error_ns=found.error_ns,
        change=found.change,
        undisturbed_gain_ns=found.undisturbed_gain_ns,
        undisturbed_gain_error_ns=found.undisturbed_error_ns,
    )


def _hidden_stragglers(
    findings: Sequence[Finding], graphs: Graphs, lateness: Sequence[Straggler]
) -> Iterator[Finding]:
    """Ranks with work that takes far longer than on their peers, though another one is last, or too
    few collectives tell who is."""
    late = [one for one in findings if one.code == _STRAGGLER]
    told = {change for one in late for change in remedy_of(one)}
    with suppress(UnreplayableError):
        graph = graphs.kernels()
        if missed_ns(graph) > MOST_ERROR * graph.recorded_ns:
            return
        for change in graph.replay.candidates():
            if isinstance(change, (RankAsMedian, GpuAsMedian)) and change not in told:
                found = candidate_of(graph, [change], _STRAGGLER, graphs)
                more = sum(one.time_ns for one in found.causes) / graph.steps
                if more >= _LEAST_HIDDEN * graph.recorded_ns:
                    yield _hidden(found, change.rank, more, graph, lateness)


def _hidden(
    found: Candidate,
    rank: int,
    more: float,
    graph: KernelAnswers,
    lateness: Sequence[Straggler],
) -> Finding:
    times, names = _stretches(found, graph.steps)
    share = more / graph.recorded_ns
    of_gpu = found.causes[0].kernel is not None
    what = "GPU" if of_gpu else "CPU"
    why = "more work, a slower clock" if of_gpu else "Python, data, another process, a slow host"
    is_alone = not any(one.last_arrivals for one in lateness if one.rank != rank)
    others = "" if is_alone else " In this window other ranks are late, too."
    finding = Finding(
        _STRAGGLER,
        severity(share),
        f"In an iteration, rank {rank}'s {what} takes {milliseconds(more)} longer than on the "
        f"ranks that do the same work, in {times} of {names}.{others}",
        {"rank": rank, "more_ns": round(more), "share": share, **_causes(found)},
        f"Look at what rank {rank} does there that the others do not do ({why}).",
        share,
    )
    return replace(
        finding,
        gain_ns=found.gain_ns,
        gain_error_ns=found.error_ns,
        change=found.change,
        undisturbed_gain_ns=found.undisturbed_gain_ns,
        undisturbed_gain_error_ns=found.undisturbed_error_ns,
    )


def _causes(found: Candidate) -> dict[str, object]:
    return {"causes": [asdict(one) for one in found.causes]} if found.causes else {}


def _where(found: Candidate, graphs: Graphs) -> str:
    """Which work of the rank took far longer, with a blank before it; nothing if none did."""
    if not found.causes:
        return ""
    steps = graphs.kernels().steps
    times, names = _stretches(found, steps)
    more = sum(one.time_ns for one in found.causes) / steps
    longest = found.causes[0]
    own, its = ("'s GPU", "those of its peers") if longest.kernel else ("", "its peers")
    return (
        f" In an iteration, rank {longest.rank}{own} takes {milliseconds(more)} longer than {its}, "
        f"in {times} of {names}."
    )


def _stretches(found: Candidate, steps: int) -> tuple[str, str]:
    """How many there are in an iteration, and of which work."""
    longest = found.causes[0]
    names = listed(
        [_UNNAMED if one.name == TRAINING_LOOP else f"`{one.name}`" for one in found.causes],
        most=_MOST_CAUSES,
    )
    told = longest.function or longest.kernel
    what = f" ({told})" if told else ""
    times = max(1, round(sum(one.count for one in found.causes) / steps))
    return counted(times, "stretch", "stretches"), names + what
