# SPDX-License-Identifier: Apache-2.0
"""One rank, one module, one collective."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from megatron.torch_trace.agent.overview import ms
from megatron.torch_trace.agent.pages import answer
from megatron.torch_trace.agent.recording import Recording
from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.analysis.timeline.moment import Moment
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_PARTS
from megatron.torch_trace.report.json_document import asdict
from megatron.torch_trace.wording import nearest

_MOST_KERNELS, _MOST_CALLERS = 12, 8


def rank(recording: Recording, number: int, page: int) -> str:
    """Its steps, its communication, its longest kernels, and why its GPU was idle."""
    one = recording.rank(number)
    host = one.host
    facts: dict[str, Any] = {
        "rank": one.rank,
        **one.coordinates,
        "device": one.device,
        "host": one.host_name,
        "unknown": one.unknown,
        "slowdown_by_the_profiler": one.slowdown,
        "idle_by_cause_ms": {
            name.removesuffix("_ns"): ms(value)
            for name, value in asdict(host.idle).items()
            if name.endswith("_ns") and value
        },
        "kernels_shorter_than_5_us": host.tiny_kernels,
    }
    return answer(facts, [*_steps(one), *_communication(one), *_host(one), *_kernels(one)], page)


def _steps(one: RankResult) -> Iterable[dict[str, Any]]:
    for step in one.steps:
        yield {
            "step": step.step,
            "start_ns": step.start_ns,
            "step_ms": ms(step.end_ns - step.start_ns),
            **{
                f"{part}_ms": ms(getattr(step.breakdown, part)) if step.breakdown else None
                for part in BREAKDOWN_PARTS
            },
        }
    for load in one.host.data_loading:
        yield {"data_loader": {**asdict(load)}}


def _communication(one: RankResult) -> Iterable[dict[str, Any]]:
    for row in one.communication:
        yield {
            "communication": f"{row.dimension} {row.collective}",
            "calls": row.calls,
            "ms": ms(row.time_ns),
            "exposed_ms": ms(row.exposed_ns),
            "waits_ms": ms(row.wait_ns),
            "bytes": row.bytes,
            "busbw_gbps": row.busbw_gbps,
            **_longest(row.longest),
        }


def _host(one: RankResult) -> Iterable[dict[str, Any]]:
    for sync in one.host.syncs[:_MOST_CALLERS]:
        yield {"synchronisation": asdict(sync)}
    for function in one.host.python[:_MOST_CALLERS]:
        yield {"python": asdict(function)}


def _kernels(one: RankResult) -> Iterable[dict[str, Any]]:
    for row in one.kernels[:_MOST_KERNELS]:
        yield {
            "kernel": row.name,
            "class": row.kind,
            "calls": row.calls,
            "ms": ms(row.time_ns),
            "longest_ms": ms(row.max_ns),
            **_longest(row.longest),
        }


def module(recording: Recording, name: str, page: int) -> str:
    """Modules of this path or class on all ranks, the most time first."""
    ranks = recording.analysis.ranks
    known = {row.module for one in ranks for row in one.modules}
    known |= {row.type for one in ranks for row in one.modules}
    if not known:
        raise UsageError(
            f"{name}: the traces tell of no modules; record with --torch-profile-spans modules."
        )
    rows = [
        {
            "rank": one.rank,
            "module": row.module,
            "type": row.type,
            "calls": row.calls,
            "total_ms": ms(row.total_ns),
            "forward_ms": ms(row.time_ns),
            "backward_ms": ms(row.backward_time_ns),
            "recompute_ms": ms(row.recompute_time_ns) if row.recompute_calls else None,
            "exposed_communication_ms": ms(row.exposed_communication_ns),
            "share_of_gpu_work": row.share,
            "tflops": row.tflops,
            "peak_share": row.peak_share,
            **_longest(row.longest),
        }
        for one in ranks
        for row in one.modules
        if name in (row.module, row.type)
    ]
    if not rows:
        raise UsageError(f"{name}: no such module; {nearest(name, sorted(known))}")
    rows.sort(key=lambda row: -(row["total_ms"] or 0))
    return answer({"times": "of the window; longest: its longest span on the CPU"}, rows, page)


def collective(recording: Recording, dimension: str, page: int) -> str:
    """Communication of a dimension: who waits, who comes last, and in which call most."""
    analysis = recording.analysis
    known = {row.dimension for one in analysis.ranks for row in one.communication}
    if dimension not in known:
        raise UsageError(f"{dimension}: no such dimension here; {nearest(dimension, known)}")
    rows: list[dict[str, Any]] = [
        {
            "last_to_arrive": one.rank,
            "collective": late.collective,
            "calls": late.calls,
            "last_arrivals": late.last_arrivals,
            "others_wait_ms": ms(late.imposed_wait_ns),
            "waits_itself_ms": ms(late.own_wait_ns),
            **_longest(late.worst, "worst"),
        }
        for one in analysis.stragglers
        for late in one.by_collective
        if late.dimension == dimension
    ]
    for one in analysis.ranks:
        rows += [
            {"rank": one.rank, **row}
            for row in _communication(one)
            if row["communication"].split()[0] == dimension
        ]
    return answer({"dimension": dimension, "times": "of the window"}, rows, page)


def _longest(moment: Moment | None, name: str = "longest") -> dict[str, Any]:
    if moment is None:
        return {}
    return {f"{name}_start_ns": moment.start_ns, f"{name}_ms": ms(moment.duration_ns)}
