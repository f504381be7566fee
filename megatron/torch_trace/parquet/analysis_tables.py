# SPDX-License-Identifier: Apache-2.0
"""Tables of what an analysis says: steps, modules and findings."""

from __future__ import annotations

import json
from collections.abc import Iterable

import polars as pl

from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_PARTS
from megatron.torch_trace.parquet.schemas import FINDINGS, MODULES, STEPS


def step_table(ranks: Iterable[RankResult]) -> pl.DataFrame:
    """The breakdown of each step by the clock; its parts are null where they are unknown."""
    rows = [
        {
            "rank": rank.rank,
            "step": step.step,
            "start_ns": step.start_ns,
            "duration_ns": step.end_ns - step.start_ns,
            **{f"{part}_ns": getattr(step.breakdown, part, None) for part in BREAKDOWN_PARTS},
        }
        for rank in ranks
        for step in rank.steps
    ]
    return pl.DataFrame(rows, schema=dict(STEPS))


def module_table(ranks: Iterable[RankResult]) -> pl.DataFrame:
    """Modules by rank and path; the numbers are those of the analysis."""
    rows = [
        {"rank": rank.rank, **{name: getattr(row, name) for name in MODULES if name != "rank"}}
        for rank in ranks
        for row in rank.modules
    ]
    return pl.DataFrame(rows, schema=dict(MODULES))


def finding_table(analysis: Analysis) -> pl.DataFrame:
    """Findings in the order of the analysis, from 1, each with the moment that shows it best."""
    rows = [
        {
            "number": number,
            **{name: getattr(one, name, None) for name in FINDINGS if name != "number"},
            **_moment(analysis, one),
            "evidence": json.dumps(dict(one.evidence)),
        }
        for number, one in enumerate(analysis.findings, 1)
    ]
    return pl.DataFrame(rows, schema=dict(FINDINGS))


def _moment(analysis: Analysis, finding: Finding) -> dict[str, int | None]:
    if finding.example is None:
        return {}
    number, moment = finding.example
    steps = [step for one in analysis.ranks if one.rank == number for step in one.steps]
    return {
        "rank": number,
        "start_ns": moment.start_ns,
        "duration_ns": moment.duration_ns,
        "step": next(
            (step.step for step in steps if step.start_ns <= moment.start_ns < step.end_ns), None
        ),
    }
