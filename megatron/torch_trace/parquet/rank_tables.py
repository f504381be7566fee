# SPDX-License-Identifier: Apache-2.0
"""The tables of one rank: its events, kernels and collectives."""

from __future__ import annotations

import numpy as np
import polars as pl

from megatron.torch_trace.analysis.communication.collectives import CollectiveCalls
from megatron.torch_trace.analysis.communication.rank_calls import RankCalls
from megatron.torch_trace.analysis.timeline.activity import KERNEL, MEMCPY, MEMSET, NONE
from megatron.torch_trace.analysis.timeline.kernel_names import short_name
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.slice_table import EventTable
from megatron.torch_trace.parquet.schemas import (
    COLLECTIVES,
    EVENTS,
    KERNELS,
    none_is_null,
    shaped,
    step_numbers,
    texts,
)

_KINDS = {KERNEL: "kernel", MEMCPY: "memcpy", MEMSET: "memset"}


def event_table(rank: int, table: EventTable) -> pl.DataFrame:
    """Every slice, in the order of the file."""
    slices = table.slices
    codes = {
        "name": pl.Series(table.names, dtype=pl.String).gather(slices["name"]),
        "process": texts([pid for pid, _ in table.tracks]).gather(slices["track"]),
        "thread": texts([tid for _, tid in table.tracks]).gather(slices["track"]),
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
        "step": step_numbers(timeline, timeline.step_of),
        "exposed_ns": exposed.set(pl.Series(~timeline.is_communication), None),
        "bytes": gpu.bytes,
        "dimension": pl.Series([k.dimension for k in calls.kinds], dtype=pl.String).gather(told),
        "collective": pl.Series([k.collective for k in calls.kinds], dtype=pl.String).gather(told),
    }
    return shaped(columns, KERNELS)


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
