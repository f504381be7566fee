# SPDX-License-Identifier: Apache-2.0
"""`torch-trace compare --json`: schema 1. Times are ns an iteration and rank; unknown is null."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from megatron.torch_trace.analysis.compare.comparison import Comparison
from megatron.torch_trace.analysis.compare.conditions import Verdict
from megatron.torch_trace.analysis.compare.statistics import Difference
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding

SCHEMA = 1


def comparison_document(
    comparison: Comparison,
    a: Analysis,
    b: Analysis,
    names: tuple[str, str],
    verdicts: Sequence[Verdict] = (),
) -> dict[str, Any]:
    """The document, made of what `json.dumps` takes."""
    return {
        "schema": SCHEMA,
        "a": _side(names[0], a),
        "b": _side(names[1], b),
        "configuration": asdict(comparison.configuration),
        "different_work": [asdict(one) for one in comparison.different_work],
        "iteration": _difference(comparison.iteration),
        "breakdown": {name: _difference(one) for name, one in comparison.breakdown.items()},
        "dimensions": {name: _difference(one) for name, one in comparison.dimensions.items()},
        "undisturbed": _difference(comparison.undisturbed),
        "slowdown": _difference(comparison.slowdown),
        "mfu": _difference(comparison.mfu),
        "ranks": [asdict(one) for one in comparison.ranks],
        "straggler": {"a": comparison.straggler_before, "b": comparison.straggler_after},
        "stragglers": [asdict(one) for one in comparison.stragglers],
        "findings": {
            "appeared": [_finding(one) for one in comparison.appeared],
            "vanished": [_finding(one) for one in comparison.vanished],
        },
        **{
            table: [_row(row) for row in getattr(comparison, table)]
            for table in (
                "communication",
                "kernels",
                "families",
                "shapes",
                "phases",
                "module_classes",
                "modules",
                "module_tree",
                "loop_tree",
            )
        },
        "unknown_modules": comparison.unknown_modules,
        "unknown_loop": comparison.unknown_loop,
        "fail_if": [_verdict(one) for one in verdicts],
    }


def _side(name: str, analysis: Analysis) -> dict[str, Any]:
    return {
        "name": name,
        "ranks": [rank.rank for rank in analysis.ranks],
        "steps": list(analysis.summary.steps),
        "device": analysis.ranks[0].device,
        "world_size": analysis.ranks[0].world_size,
    }


def _difference(one: Difference) -> dict[str, Any]:
    return {
        **asdict(one),
        "change": one.change,
        "relative": one.relative,
        "significant": one.significant,
    }


def _row(row: Any) -> dict[str, Any]:
    return {
        name: _difference(value) if isinstance(value, Difference) else value
        for name in row.__slots__
        for value in [getattr(row, name)]
    }


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "code": one.code,
        "severity": one.severity,
        "title": one.title,
        "evidence": dict(one.evidence),
        "advice": one.advice,
    }


def _verdict(one: Verdict) -> dict[str, Any]:
    return {
        "condition": one.condition.text,
        "metric": one.condition.metric,
        # JSON has no infinity: something that A has nothing of.
        "change": None if math.isinf(one.change) else one.change,
        "unit": one.condition.unit,
        "holds": one.holds,
    }
