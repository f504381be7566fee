# SPDX-License-Identifier: Apache-2.0
"""`--json`, schema 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from megatron.torch_profile.component.answer.conditions import Verdict
from megatron.torch_profile.component.config import snapshot
from megatron.torch_profile.component.measure.samples import Ratio, Summary
from megatron.torch_profile.component.results import Answer, Result


def document(answer: Answer, verdicts: Sequence[Verdict] = ()) -> dict[str, Any]:
    """The answer as plain values; what is unknown is null."""
    return {
        "schema": 1,
        "run_folder": str(answer.run_folder),
        "device": answer.device,
        "clock": answer.clock,
        "world_size": answer.world_size,
        "config": snapshot(answer.config),
        "again": _ratio(answer.again),
        "variants": [_variant(answer, one) for one in answer.results],
        "fail_if": [
            {"condition": one.condition.text, "holds": one.holds, "told": one.told}
            for one in verdicts
        ],
    }


def _variant(answer: Answer, one: Result) -> dict[str, Any]:
    return {
        "name": one.case.name,
        "variant": one.case.variant,
        "point": dict(one.case.point),
        "failure": one.failure,
        "left_out": one.left_out,
        **_times(one.summary),
        "steps": one.summary.steps if one.summary else 0,
        "flops": one.work.flops if one.work else None,
        "bytes": one.work.bytes if one.work else None,
        "peak_memory_bytes": one.peak_bytes,
        "kernels": one.kernels,
        "gpu_us": None if one.gpu_ns is None else one.gpu_ns / 1e3,
        "queued_us": None if one.queued_ns is None else one.queued_ns / 1e3,
        "roof_share": one.roof_share,
        "bound_by": one.ceilings.bound_by(one.work) if one.ceilings and one.work else None,
        "ceilings": asdict(one.ceilings) if one.ceilings else None,
        "baseline": one.baseline,
        "ratio": _ratio(one.ratio),
        "sure": answer.sure(one),
        "window": str(one.window) if one.window else None,
        "slowest_rank": one.slowest.rank if one.slowest else None,
        "ranks": [{"rank": rank.rank, **_times(rank.summary)} for rank in one.ranks],
        "findings": [asdict(finding) for finding in one.findings],
    }


def _times(summary: Summary | None) -> dict[str, Any]:
    names = {"median": "median", "mean": "mean", "least": "min", "most": "max"}
    names |= {one: one for one in ("p10", "p25", "p75", "p90", "p99")}
    if summary is None:
        return {f"{name}_us": None for name in names.values()}
    return {f"{name}_us": getattr(summary, key) / 1e3 for key, name in names.items()}


def _ratio(one: Ratio | None) -> dict[str, Any] | None:
    return asdict(one) if one else None
