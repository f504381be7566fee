# SPDX-License-Identifier: Apache-2.0
"""`torch-trace analyze --json`: schema 1. Times are integer ns, unknown is null, never NaN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from megatron.torch_trace.analysis.gpu_work.kernels import KernelRow
from megatron.torch_trace.analysis.host.idle import Host
from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult

SCHEMA = 1
TABLES = (
    "kernels",
    "operators",
    "shapes",
    "modules",
    "module_classes",
    "microbatches",
    "passes",
)
"""Of a rank, beside `loop_paths` of its `host`: they grow with the model and its micro-batches."""


def pieces(analysis: Analysis, *, tables: bool = True) -> Iterator[str]:
    """The document as text, rank by rank: a thousand of them at once would fill the memory.

    Args:
        analysis: of any number of ranks.
        tables: False leaves out what grows with the model (`TABLES`) or with the ranks of a group
            (`peers`); without these, thousands of ranks are not too much for who reads them.
    """
    yield f'{{"schema":{SCHEMA},"ranks":['
    for number, rank in enumerate(analysis.ranks):
        one = msgspec.json.encode(_rank(rank, tables=tables))
        yield ("," if number else "") + one.decode()
    of_all = _of_all(analysis)
    if not tables:
        for straggler in of_all["stragglers"]:
            del straggler["peers"]
    yield f"],{msgspec.json.encode(of_all).decode()[1:]}"


def asdict(row: Any) -> dict[str, Any]:
    """What `dataclasses.asdict` gives, in a tenth of its time."""
    fields: dict[str, Any] = msgspec.to_builtins(row)
    return fields


def _of_all(analysis: Analysis) -> dict[str, Any]:
    return {
        "summary": asdict(analysis.summary),
        "missing_ranks": _list(analysis.missing_ranks),
        "clocks": [asdict(clock) for clock in analysis.clocks],
        "matched_collectives": analysis.matched_calls,
        "worst_call": None if analysis.worst_call is None else asdict(analysis.worst_call),
        "critical_path": [asdict(one) for one in analysis.critical_path],
        "stragglers": [asdict(one) for one in analysis.stragglers],
        "stages": [asdict(stage) for stage in analysis.stages],
        "pipeline": [asdict(step) for rank in analysis.ranks for step in rank.pipeline],
        "mfu": asdict(analysis.mfu),
        "findings": [
            {
                "code": one.code,
                "severity": one.severity,
                "title": one.title,
                "evidence": dict(one.evidence),
                "advice": one.advice,
                "gain_ns": one.gain_ns,
                "gain_error_ns": one.gain_error_ns,
                "undisturbed_gain_ns": one.undisturbed_gain_ns,
                "undisturbed_gain_error_ns": one.undisturbed_gain_error_ns,
                "change": one.change,
                "cause": one.cause,
            }
            for one in analysis.findings
        ],
        "skipped_files": [
            {"file": one.file, "reason": one.reason} for one in analysis.skipped_files
        ],
    }


def _list(values: tuple[int, ...] | None) -> list[int] | None:
    return None if values is None else list(values)


def _rank(rank: RankResult, *, tables: bool = True) -> dict[str, Any]:
    """One rank in the order of the document; rows are left to who encodes them."""
    found: dict[str, Any] = {
        "rank": rank.rank if rank.is_rank_known else None,
        "file": rank.file,
        "coordinates": dict(rank.coordinates),
        "world_size": rank.world_size,
        "device": rank.device,
        "host_name": rank.host_name,
        "other_devices": list(rank.other_devices),
        "window_ns": rank.window_ns,
        "communication_ns": rank.communication_ns,
        "breakdown_ns": rank.breakdown,
        "overlapped_communication_ns": rank.overlapped_communication_ns,
        "unknown": rank.unknown,
        "wait_ns": rank.wait_ns,
        "undisturbed_iteration_ns": rank.undisturbed_iteration_ns,
        "undisturbed_iterations": len(rank.undisturbed.lengths),
        "slowdown": rank.slowdown,
        "steps": [
            {
                "step": step.step,
                "start_ns": step.start_ns,
                "end_ns": step.end_ns,
                "breakdown_ns": step.breakdown,
            }
            for step in rank.steps
        ],
        "dimensions": rank.dimensions,
        "communication": rank.communication,
        "kernels": None,
        "families": [{"class": f.pop("kind"), **f} for f in map(asdict, rank.families)],
        "operators": None,
        "shapes": None,
        "modules": None,
        "module_classes": None,
        "module_account": rank.module_account,
        "phases": rank.phases,
        "microbatches": None,
        "bubble": rank.bubble,
        "passes": None,
        "casts": rank.casts,
        "cpu": rank.cpu,
        "compile": dict(rank.compile),
        "garbage_collection": dict(rank.collector),
        "launches": rank.launches,
        "host": rank.host if tables else _without_paths(rank.host),
        "python_functions": rank.python_functions,
        "repairs": dict(rank.repairs),
        "odd_times": rank.odd_times,
    }
    if tables:
        found |= _tables(rank)
    else:
        for name in TABLES:
            del found[name]
    return found


def _tables(rank: RankResult) -> dict[str, Any]:
    return {
        "kernels": [_kernel(row) for row in rank.kernels],
        "operators": [_without(row, "shape") for row in rank.operators],
        "shapes": rank.shapes,
        "modules": rank.modules,
        "module_classes": [_without(row, "module") for row in rank.module_classes],
        "microbatches": rank.microbatches,
        "passes": rank.passes,
    }


def _without_paths(host: Host) -> dict[str, Any]:
    return _without(replace(host, loop_paths=()), "loop_paths")


def _without(row: Any, key: str) -> dict[str, Any]:
    fields = asdict(row)
    del fields[key]
    return fields


def _kernel(row: KernelRow) -> dict[str, Any]:
    fields = asdict(row)
    return {"name": fields.pop("name"), "class": fields.pop("kind"), **fields}
