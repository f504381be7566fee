# SPDX-License-Identifier: Apache-2.0
"""The tables of an analysis as polars frames."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import polars as pl

from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_PARTS

if TYPE_CHECKING:
    from megatron.torch_trace.analysis.results.analysis import Analysis

_TABLES = (
    "communication",
    "kernels",
    "families",
    "operators",
    "shapes",
    "modules",
    "module_classes",
    "phases",
    "microbatches",
    "bubble",
)


def frames(analysis: Analysis) -> dict[str, pl.DataFrame]:
    """See `Analysis.to_polars`."""
    tables: dict[str, list[Mapping[str, Any]]] = {
        "breakdown": [
            {
                "rank": rank.rank,
                "window_ns": rank.window_ns,
                "communication_ns": rank.communication_ns,
                "overlapped_communication_ns": rank.overlapped_communication_ns,
                **_breakdown(rank.breakdown),
            }
            for rank in analysis.ranks
        ],
        "steps": [
            {
                "rank": rank.rank,
                "step": step.step,
                "start_ns": step.start_ns,
                "end_ns": step.end_ns,
                **_breakdown(step.breakdown),
            }
            for rank in analysis.ranks
            for step in rank.steps
        ],
        "pipeline": [asdict(step) for rank in analysis.ranks for step in rank.pipeline],
        "stragglers": [asdict(one) for one in analysis.stragglers],
        "clocks": [asdict(one) for one in analysis.clocks],
        "findings": [
            {**_without(asdict(one), "example"), "evidence": json.dumps(dict(one.evidence))}
            for one in analysis.findings
        ],
    }
    tables["module_account"] = [
        {"rank": rank.rank, **_without(asdict(rank.module_account), "outside")}
        for rank in analysis.ranks
        if rank.module_account is not None
    ]
    tables["stages"] = [_without(asdict(stage), "layers", "classes") for stage in analysis.stages]
    for part in ("layers", "classes"):
        tables[f"stage_{part}"] = [
            {"stage": stage.stage, **asdict(row)}
            for stage in analysis.stages
            for row in getattr(stage, part)
        ]
    for name in _TABLES:
        tables[name] = [
            {"rank": rank.rank, **asdict(row)}
            for rank in analysis.ranks
            for row in getattr(rank, name)
        ]
    for name in ("operators", "modules") if analysis.is_of_the_cpu else ():
        tables[f"cpu_{name}"] = [
            {"rank": rank.rank, **asdict(row)}
            for rank in analysis.ranks
            for row in getattr(rank.cpu, name, ())
        ]
    for name in ("syncs", "data_loading", "loop_paths"):
        tables[name] = [
            {"rank": rank.rank, **asdict(row)}
            for rank in analysis.ranks
            for row in getattr(rank.host, name)
        ]
    return {name: _frame(rows) for name, rows in tables.items()}


def _without(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in names}


def _breakdown(breakdown: Any) -> dict[str, int | None]:
    return {f"{name}_ns": getattr(breakdown, name, None) for name in BREAKDOWN_PARTS}


def _frame(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), infer_schema_length=None)
