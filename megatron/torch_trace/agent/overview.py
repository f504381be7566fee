# SPDX-License-Identifier: Apache-2.0
"""What was recorded, where the time went, and what is found."""

from __future__ import annotations

from typing import Any

from megatron.torch_trace.agent.pages import answer
from megatron.torch_trace.agent.recording import Recording
from megatron.torch_trace.analysis.findings.consequences import are_partly_the_same
from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_PARTS
from megatron.torch_trace.parquet.analysis_tables import finding_table
from megatron.torch_trace.report.sentences import first_lines, possible_gains

_MS = 1e6


def ms(ns: float | None) -> float | None:
    """Milliseconds; None stays unknown."""
    return None if ns is None else ns / _MS


def overview(recording: Recording, page: int) -> str:
    """The answer in sentences, the findings in a line each, and a row a rank."""
    analysis = recording.analysis
    facts: dict[str, Any] = {
        "summary": first_lines(analysis),
        "answer": " ".join(possible_gains(analysis)) or None,
        "findings": [_line(number, one) for number, one in enumerate(analysis.findings[:12], 1)],
        "missing_ranks": list(analysis.missing_ranks or ())[:20] or None,
        "skipped_files": [one.file for one in analysis.skipped_files[:5]] or None,
        "units": "ms is a step's mean; start_ns is ns since the base time of the rank's trace",
    }
    return answer(facts, [_rank(analysis, one) for one in analysis.ranks], page)


def _line(number: int, finding: Any) -> str:
    gain = "" if finding.gain_ns is None else f" [gain {finding.gain_ns / _MS:.3g} ms]"
    how = "partly the same as" if are_partly_the_same(finding) else "follows from"
    follows = f" [{how} {finding.cause}]" if finding.cause else ""
    return f"{number} {finding.severity} {finding.code}: {finding.title}{gain}{follows}"


def _rank(analysis: Analysis, rank: RankResult) -> dict[str, Any]:
    steps = len(rank.steps) or 1
    late = next((one for one in analysis.stragglers if one.rank == rank.rank), None)
    return {
        "rank": rank.rank,
        **rank.coordinates,
        "host": rank.host_name,
        "steps": [one.step for one in rank.steps],
        "step_ms": ms(rank.window_ns / steps),
        **{
            f"{part}_ms": ms(getattr(rank.breakdown, part) / steps) if rank.breakdown else None
            for part in BREAKDOWN_PARTS
        },
        "unknown": rank.unknown,
        "waits_ms": ms(None if rank.wait_ns is None else rank.wait_ns / steps),
        "others_wait_for_it_ms": ms(late.imposed_wait_ns / steps) if late else None,
        "slowdown_by_the_profiler": rank.slowdown,
        "damage": rank.damage,
    }


def findings(recording: Recording, page: int) -> str:
    """Findings in order, with advice, gain and the moment that shows each best."""
    rows = finding_table(recording.analysis).to_dicts()
    for row in rows:
        for name in ("gain_ns", "gain_error_ns", "undisturbed_gain_ns", "duration_ns"):
            row[name.replace("_ns", "_ms")] = ms(row.pop(name))
    facts = {
        "note": "gain_ms: how much shorter a step would be without the cause; change: ask what_if; "
        "rank, step, start_ns: where to look"
    }
    return answer(facts, rows, page)
