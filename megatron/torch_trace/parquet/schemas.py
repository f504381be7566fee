# SPDX-License-Identifier: Apache-2.0
"""Columns of every table and their types. `docs/export.md` says what each column is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints, ints

Schema = Mapping[str, Any]

EVENTS: Schema = {
    "rank": pl.Int32, "category": pl.String, "name": pl.String, "process": pl.String,
    "thread": pl.String, "start_ns": pl.Int64, "duration_ns": pl.Int64, "device": pl.Int64,
    "stream": pl.Int64, "correlation": pl.Int64, "external_id": pl.Int64,
    "sequence_number": pl.Int64, "bytes": pl.Int64, "python_id": pl.Int64,
    "python_parent_id": pl.Int64,
}  # fmt: skip
KERNELS: Schema = {
    "rank": pl.Int32, "name": pl.String, "short_name": pl.String, "kind": pl.String,
    "class": pl.String, "start_ns": pl.Int64, "duration_ns": pl.Int64, "device": pl.Int64,
    "stream": pl.Int64, "correlation": pl.Int64, "launch_ns": pl.Int64, "step": pl.Int64,
    "exposed_ns": pl.Int64, "bytes": pl.Int64, "dimension": pl.String, "collective": pl.String,
}  # fmt: skip
LAUNCHES: Schema = {
    "rank": pl.Int32, "name": pl.String, "thread": pl.String, "start_ns": pl.Int64,
    "duration_ns": pl.Int64, "correlation": pl.Int64, "step": pl.Int64, "pieces": pl.Int64,
    "work_start_ns": pl.Int64, "work_ns": pl.Int64, "kernel": pl.String,
}  # fmt: skip
SPANS: Schema = {
    "rank": pl.Int32, "kind": pl.String, "name": pl.String, "thread": pl.String,
    "start_ns": pl.Int64, "duration_ns": pl.Int64, "step": pl.Int64, "module": pl.String,
    "type": pl.String, "direction": pl.String, "micro_batch": pl.Int64, "chunk": pl.Int64,
    "place": pl.String,
}  # fmt: skip
COLLECTIVES: Schema = {
    "rank": pl.Int32, "call": pl.Int64, "dimension": pl.String, "group": pl.String,
    "collective": pl.String, "group_size": pl.Int64, "seq": pl.Int64, "bytes": pl.Int64,
    "step": pl.Int64, "start_ns": pl.Int64, "duration_ns": pl.Int64, "wait_ns": pl.Int64,
    "timeline_ns": pl.Int64,
}  # fmt: skip
STEPS: Schema = {
    "rank": pl.Int32, "step": pl.Int64, "start_ns": pl.Int64, "duration_ns": pl.Int64,
    "compute_ns": pl.Int64, "exposed_communication_ns": pl.Int64, "exposed_memory_ns": pl.Int64,
    "idle_ns": pl.Int64,
}  # fmt: skip
RANKS: Schema = {
    "rank": pl.Int32, "file": pl.String, "world_size": pl.Int64, "tp": pl.Int64, "pp": pl.Int64,
    "dp": pl.Int64, "cp": pl.Int64, "ep": pl.Int64, "base_ns": pl.Int64, "offset_ns": pl.Int64,
    "clock_ns": pl.Int64,
}  # fmt: skip
MODULES: Schema = {
    "rank": pl.Int32, "module": pl.String, "type": pl.String, "calls": pl.Int64,
    "self_ns": pl.Int64, "time_ns": pl.Int64, "kernels": pl.Int64, "backward_calls": pl.Int64,
    "backward_self_ns": pl.Int64, "backward_time_ns": pl.Int64, "backward_kernels": pl.Int64,
    "recompute_calls": pl.Int64, "recompute_self_ns": pl.Int64, "recompute_time_ns": pl.Int64,
    "recompute_kernels": pl.Int64, "total_ns": pl.Int64, "exposed_communication_ns": pl.Int64,
    "share": pl.Float64, "communication_ns": pl.Int64, "flops": pl.Int64,
    "backward_flops": pl.Int64, "recompute_flops": pl.Int64, "tflops": pl.Float64,
    "peak_share": pl.Float64,
}  # fmt: skip
FINDINGS: Schema = {
    "number": pl.Int64, "code": pl.String, "severity": pl.String, "title": pl.String,
    "advice": pl.String, "share": pl.Float64, "gain_ns": pl.Int64, "gain_error_ns": pl.Int64,
    "undisturbed_gain_ns": pl.Int64, "change": pl.String, "cause": pl.String, "rank": pl.Int32,
    "step": pl.Int64, "start_ns": pl.Int64, "duration_ns": pl.Int64, "evidence": pl.String,
}  # fmt: skip
SCHEMAS = {
    "ranks": RANKS,
    "steps": STEPS,
    "kernels": KERNELS,
    "collectives": COLLECTIVES,
    "modules": MODULES,
    "spans": SPANS,
    "launches": LAUNCHES,
    "findings": FINDINGS,
    "events": EVENTS,
}


def shaped(columns: Mapping[str, Any], schema: Schema) -> pl.DataFrame:
    """A frame with the schema's columns, in its order, of its types."""
    frame = pl.DataFrame(columns)
    return frame.select(pl.col(name).cast(kind) for name, kind in schema.items())


def none_is_null(values: Ints) -> pl.Series:
    """The analysis' -1 for "has none" as null."""
    series = pl.Series(values.astype(np.int64))
    return series.set(series == NONE, None)


def texts(values: list[Any]) -> pl.Series:
    """What identifies a process or a thread, as text."""
    return pl.Series([None if one is None else str(one) for one in values], dtype=pl.String)


def step_numbers(timeline: Timeline, positions: Ints) -> pl.Series:
    """The numbers of the steps at these positions in `window.steps`; null for NONE."""
    numbers = ints([*(step.number for step in timeline.window.steps), NONE])
    return none_is_null(numbers[positions])
