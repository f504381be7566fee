# SPDX-License-Identifier: Apache-2.0
"""The tables of one rank's CPU: launches, and spans of modules, micro-batches and phases."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.kernel_names import short_name
from megatron.torch_trace.analysis.timeline.span_names import (
    microbatch_span,
    module_span,
    phase_of,
)
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.format.categories import is_kernel_launch
from megatron.torch_trace.format.communication_names import is_range
from megatron.torch_trace.format.step_names import step_number
from megatron.torch_trace.parquet.schemas import (
    LAUNCHES,
    SPANS,
    none_is_null,
    shaped,
    step_numbers,
    texts,
)

MODULE, MICRO_BATCH, PHASE, OTHER = "module", "micro-batch", "phase", "other"


def launch_table(rank: int, timeline: Timeline) -> pl.DataFrame:
    """Calls that put work on the analysed device, or should have, by start."""
    activity, calls, gpu = timeline.activity, timeline.activity.calls, timeline.activity.gpu
    by = timeline.launches.call
    launched = np.flatnonzero(by != NONE)
    pieces = np.bincount(by[launched], minlength=len(calls))
    rows = np.flatnonzero((pieces > 0) | activity.named(calls, is_kernel_launch))
    # Work is sorted by start: written backwards, the first piece of each call is what stays.
    first = np.full(len(calls), NONE, dtype=np.int64)
    first[by[launched[::-1]]] = launched[::-1]
    work = np.zeros(len(calls), dtype=np.int64)
    np.add.at(work, by[launched], (gpu.end - gpu.start)[launched])
    start = np.append(gpu.start, NONE)[first[rows]]
    codes, name = np.unique(np.append(gpu.name, NONE)[first[rows]], return_inverse=True)
    short = [None if code == NONE else short_name(activity.names[code]) for code in codes.tolist()]
    ran = pl.Series(pieces[rows] > 0)
    columns = {
        "rank": np.full(len(rows), rank),
        "name": pl.Series(activity.names, dtype=pl.String).gather(calls.name[rows]),
        "thread": texts([tid for _, tid in activity.tracks]).gather(calls.track[rows]),
        "start_ns": calls.start[rows],
        "duration_ns": (calls.end - calls.start)[rows],
        "correlation": none_is_null(calls.correlation[rows]),
        "step": step_numbers(timeline, timeline.window.step_index(calls.start[rows])),
        "pieces": pieces[rows],
        "work_start_ns": pl.Series(start).set(~ran, None),
        "work_ns": pl.Series(work[rows]).set(~ran, None),
        "kernel": pl.Series(short, dtype=pl.String).gather(name),
    }
    return shaped(columns, LAUNCHES)


def span_table(rank: int, timeline: Timeline) -> pl.DataFrame:
    """Annotations of the CPU by start, without the steps and without torch's own ranges."""
    activity, ops = timeline.activity, timeline.activity.ops
    own = activity.named(ops, lambda name: step_number(name) is None and not is_range(name))
    rows = np.flatnonzero(ops.annotation & own)
    names = ops.name[rows]
    codes, position = np.unique(names, return_inverse=True)
    told = [_told(activity.names[code]) for code in codes.tolist()]
    columns = {
        "rank": np.full(len(rows), rank),
        "name": pl.Series(activity.names, dtype=pl.String).gather(names),
        "thread": texts([tid for _, tid in activity.tracks]).gather(ops.track[rows]),
        "start_ns": ops.start[rows],
        "duration_ns": (ops.end - ops.start)[rows],
        "step": step_numbers(timeline, timeline.window.step_index(ops.start[rows])),
    }
    for name, kind in SPANS.items():
        if name not in columns:
            columns[name] = pl.Series([one.get(name) for one in told], dtype=kind).gather(position)
    return shaped(columns, SPANS)


def _told(name: str) -> dict[str, Any]:
    """What the name of a span says; None where it says nothing of it."""
    module = module_span(name)
    if module:
        return {
            "kind": MODULE,
            "module": module.path,
            "type": module.type,
            "direction": module.direction,
        }
    micro_batch = microbatch_span(name)
    if micro_batch:
        return {
            "kind": MICRO_BATCH,
            "direction": micro_batch.direction,
            "micro_batch": micro_batch.number,
            "chunk": micro_batch.chunk,
            "place": micro_batch.place,
        }
    return {"kind": PHASE if phase_of(name) else OTHER}
