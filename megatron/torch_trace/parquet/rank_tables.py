# SPDX-License-Identifier: Apache-2.0
"""The tables of one rank: its events, kernels, collectives and steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from megatron.torch_trace.analysis.communication.collectives import CollectiveCalls
from megatron.torch_trace.analysis.communication.matching import RankCalls
from megatron.torch_trace.analysis.timeline.activity import KERNEL, MEMCPY, MEMSET, NONE
from megatron.torch_trace.analysis.timeline.breakdown import break_down
from megatron.torch_trace.analysis.timeline.kernel_names import short_name
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.columns.slice_table import EventTable

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
SCHEMAS = {
    "events": EVENTS,
    "kernels": KERNELS,
    "collectives": COLLECTIVES,
    "steps": STEPS,
    "ranks": RANKS,
}

_KINDS = {KERNEL: "kernel", MEMCPY: "memcpy", MEMSET: "memset"}


def shaped(columns: Mapping[str, Any], schema: Schema) -> pl.DataFrame:
    """A frame with the schema's columns, in its order, of its types."""
    frame = pl.DataFrame(columns)
    return frame.select(pl.col(name).cast(kind) for name, kind in schema.items())


def event_table(rank: int, table: EventTable) -> pl.DataFrame:
    """Every slice, in the order of the file."""
    slices = table.slices
    codes = {
        "name": pl.Series(table.names, dtype=pl.String).gather(slices["name"]),
        "process": _texts([pid for pid, _ in table.tracks]).gather(slices["track"]),
        "thread": _texts([tid for _, tid in table.tracks]).gather(slices["track"]),
    }
    renamed = slices.rename({"ts": "start_ns", "dur": "duration_ns"}).drop("name", "track")
    return shaped(
        {
            "rank": pl.repeat(rank, len(slices), eager=True),
            **codes,
            **renamed.to_dict(),
        },
        EVENTS,
    )


def _texts(identities: list[Any]) -> pl.Series:
    return pl.Series([None if one is None else str(one) for one in identities], dtype=pl.String)


def none_is_null(values: Ints) -> pl.Series:
    """The analysis' -1 for "has none" as null."""
    series = pl.Series(values.astype(np.int64))
    return series.set(series == NONE, None)


def kernel_table(rank: int, timeline: Timeline, calls: CollectiveCalls) -> pl.DataFrame:
    """All work of the analysed device, by start."""
    activity, gpu = timeline.activity, timeline.activity.gpu
    names = pl.Series(activity.names, dtype=pl.String)
    short = pl.Series([short_name(name) for name in activity.names], dtype=pl.String)
    kind = np.full(len(gpu), NONE, dtype=np.int64)
    kind[calls.rows] = calls.kind
    told = none_is_null(kind)
    exposed = pl.Series(timeline.exposed_communication)
    columns = {
        "rank": np.full(len(gpu), rank),
        "name": names.gather(gpu.name),
        "short_name": short.gather(gpu.name),
        "kind": pl.Series([_KINDS[code] for code in gpu.kind.tolist()], dtype=pl.String),
        "class": pl.Series([timeline.class_of(row) for row in range(len(gpu))], dtype=pl.String),
        "start_ns": gpu.start,
        "duration_ns": gpu.end - gpu.start,
        "device": none_is_null(gpu.device),
        "stream": none_is_null(gpu.stream),
        "correlation": none_is_null(gpu.correlation),
        "launch_ns": none_is_null(timeline.launches.time),
        "step": none_is_null(_step_numbers(timeline)[timeline.step_of]),
        "exposed_ns": exposed.set(pl.Series(~timeline.is_communication), None),
        "bytes": gpu.bytes,
        "dimension": pl.Series([k.dimension for k in calls.kinds], dtype=pl.String).gather(told),
        "collective": pl.Series([k.collective for k in calls.kinds], dtype=pl.String).gather(told),
    }
    return shaped(columns, KERNELS)


def _step_numbers(timeline: Timeline) -> Ints:
    return ints([*(step.number for step in timeline.window.steps), NONE])


def collective_table(rank: int, calls: RankCalls, base_ns: int) -> pl.DataFrame:
    """Communication in the window, in the order of launch; without what other ranks tell."""
    kinds = calls.kinds
    columns = {
        "rank": np.full(len(calls.start), rank),
        "dimension": pl.Series([k.dimension for k in kinds], dtype=pl.String).gather(calls.kind),
        "group": pl.Series([k.group for k in kinds], dtype=pl.String).gather(calls.kind),
        "collective": pl.Series([k.collective for k in kinds], dtype=pl.String).gather(calls.kind),
        "group_size": pl.Series([k.group_size for k in kinds], dtype=pl.Int64).gather(calls.kind),
        "seq": none_is_null(calls.seq),
        "bytes": none_is_null(calls.bytes),
        "step": none_is_null(calls.step),
        "start_ns": calls.start - base_ns,
        "duration_ns": calls.end - calls.start,
    }
    own = {name: kind for name, kind in COLLECTIVES.items() if name in columns}
    return shaped(columns, own)


def step_table(rank: int, timeline: Timeline) -> pl.DataFrame:
    """The breakdown of each step by the clock."""
    _, parts = break_down(timeline.sets, timeline.window)
    rows = [
        {
            "rank": rank,
            "step": step.number,
            "start_ns": step.start,
            "duration_ns": step.end - step.start,
            "compute_ns": part.compute,
            "exposed_communication_ns": part.exposed_communication,
            "exposed_memory_ns": part.exposed_memory,
            "idle_ns": part.idle,
        }
        for step, part in zip(timeline.window.steps, parts, strict=True)
    ]
    return pl.DataFrame(rows, schema=dict(STEPS))
