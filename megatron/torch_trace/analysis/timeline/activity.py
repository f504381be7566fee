# SPDX-License-Identifier: Apache-2.0
"""What one rank's CPU and GPU did, as columns: the only view of a trace that the analysis has.

    activity = read_activity("rank-0.json.gz")
    activity.gpu        kernels, copies and memsets           one row each, times in integer ns
    activity.calls      runtime and driver calls              correlation says what they launched
    activity.ops        operators and annotations on the CPU  nested by time on their track
    activity.waits      who waits for which stream            only with enable_cuda_sync_events
    activity.frames     Python frames: modules' and long ones nested by time on their track

Short Python frames, arrows and everything else are looked at and let go, so memory grows only with
what is analysed. Times are ns relative to `activity.base_ns`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.timeline.code_columns import codes_of, rows_with
from megatron.torch_trace.analysis.timeline.rows import NONE as NONE
from megatron.torch_trace.analysis.timeline.rows import Numbered
from megatron.torch_trace.analysis.timeline.rows import Rows as Rows
from megatron.torch_trace.columns.activity_blocks import tables_of
from megatron.torch_trace.columns.activity_tables import (
    CALL,
    CODES,
    COLLECTIVE_FIELDS,
    COLUMNS,
    FRAME,
    GPU,
    OP,
    OTHER_DEVICE,
    OVERHEAD,
    PYTHON_FUNCTIONS,
    WAIT,
)
from megatron.torch_trace.columns.builder import ColumnBuilder
from megatron.torch_trace.columns.intervals import Ints
from megatron.torch_trace.columns.joined_columns import JoinedColumns
from megatron.torch_trace.columns.slice_events import EventOrSlice
from megatron.torch_trace.columns.true_times import as_intervals, mend, take_out_duplicates
from megatron.torch_trace.format.long_names import analysed
from megatron.torch_trace.format.step_names import step_number
from megatron.torch_trace.reader import Damage, Metadata, Trace

KERNEL, MEMCPY, MEMSET = 0, 1, 2
"""Codes of `GpuWork.kind`."""


@dataclass(slots=True)
class GpuWork(Rows):
    """Sorted by start.

    Args:
        kind: KERNEL, MEMCPY or MEMSET.
        device, stream, correlation: as written, NONE if absent.
        bytes: size of a copy or memset, 0 if not recorded.
        collective: row of `Activity.collectives`, or NONE.
        op: row of `Activity.ops` that launched it, where no call is known to; else NONE.
    """

    kind: Ints
    device: Ints
    stream: Ints
    correlation: Ints
    bytes: Ints
    collective: Ints
    op: Ints


@dataclass(slots=True)
class Calls(Rows):
    """Runtime and driver calls, sorted by start; `correlation` is NONE if absent."""

    correlation: Ints


@dataclass(slots=True)
class Ops(Numbered):
    """Operators and annotations of the CPU.

    Args:
        annotation: True for annotations, False for operators.
        shape: code into `Activity.shapes`, NONE if shapes were not recorded.
        inputs: of attention, code into `Activity.inputs`, NONE if not recorded.
        collective: row of `Activity.collectives`, or NONE.
    """

    annotation: npt.NDArray[np.bool_]
    shape: Ints
    inputs: Ints
    collective: Ints


@dataclass(slots=True)
class Waits(Rows):
    """Waits that CUPTI recorded, of calls of the CPU and of streams, sorted by start.

    torch records them with `enable_cuda_sync_events`.

    Args:
        correlation: of the call that waits, or that makes a stream wait.
        stream: which waits, or is waited for by the CPU; NONE if absent.
        waits_on: stream of the event that is awaited; NONE if absent.
        record: correlation of the call that recorded the event; NONE if absent.
    """

    correlation: Ints
    stream: Ints
    waits_on: Ints
    record: Ints


@dataclass(frozen=True, slots=True)
class Collective:
    """Arguments of a collective as torch wrote them; `reader.Args` explains them."""

    name: str
    in_nelems: int | None = None
    out_nelems: int | None = None
    group_size: int | None = None
    dtype: str | None = None
    group_name: str | None = None
    group_description: str | None = None
    group_ranks: str | None = None
    seq: int | None = None
    src_rank: int | None = None
    dst_rank: int | None = None


@dataclass(slots=True)
class Activity:
    """One rank's trace, as far as it is analysed."""

    path: Path
    metadata: Metadata
    damage: Damage
    base_ns: int
    gpu: GpuWork
    calls: Calls
    ops: Ops
    overhead: Rows
    frames: Rows
    waits: Waits
    names: list[str]
    shapes: list[str]
    inputs: list[str]
    tracks: list[tuple[Any, Any]]
    collectives: list[Collective]
    python_functions: int = 0
    without_start: int = 0
    odd_times: int = 0
    unfinished: int = 0
    duplicates: int = 0
    others: dict[str, int] = field(default_factory=dict)
    raw_bytes: int = 0

    def named(self, rows: Rows, wanted: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        """Which of `rows` have a name that `wanted` accepts."""
        return rows_with(rows.name, codes_of(self.names, wanted), len(self.names))

    def on_thread(self, rows: Rows, track: int) -> npt.NDArray[np.bool_]:
        """Which of `rows` are on the same thread as the track with this code."""
        thread = self.tracks[track]
        same = [code for code, one in enumerate(self.tracks) if one == thread]
        return rows_with(rows.track, same, len(self.tracks))


def read_activity(path: Path | str, *, workers: int = 1, strict: bool = False) -> Activity:
    """Read one trace.

    Args:
        path: the trace of one rank.
        workers: processes to decode with.
        strict: raise StrictError at the first fault.

    Raises:
        NotATraceError: the file is something else.
        StrictError: it is damaged, under `strict`.
    """
    trace = Trace(path, strict=strict)
    joined = JoinedColumns(COLUMNS, CODES)
    look = ColumnBuilder(tables_of(trace))
    for block in trace.map(look, EventOrSlice, workers=workers, small_results=True):
        joined.add(block)
    return activity_of(trace, joined)


def activity_of(trace: Trace, joined: JoinedColumns) -> Activity:
    """What was read of a whole trace.

    Args:
        trace: read to its end.
        joined: `COLUMNS` of all its blocks.
    """
    tables = joined.finish()
    again, _ = take_out_duplicates(tables, (GPU, CALL))
    odd = mend(tables, _is_gpu_work, own_clock=GPU)
    for table in tables.values():
        as_intervals(table)
    codes = joined.codes
    # torch 1.8 and 1.9 wrote steps as operators; nothing is computed in them.
    steps = codes_of(list(codes["name"]), lambda name: step_number(name) is not None)
    tables[OP]["annotation"] |= rows_with(tables[OP]["name"], steps, len(codes["name"]))
    return Activity(
        path=trace.path,
        metadata=trace.metadata,
        damage=trace.damage,
        base_ns=trace.metadata.base_time_ns,
        gpu=GpuWork(**tables[GPU], op=np.full(len(tables[GPU]["start"]), NONE, dtype=np.int32)),
        calls=Calls(**tables[CALL]),
        ops=Ops(**tables[OP]),  # type: ignore[arg-type]
        overhead=Rows(**tables[OVERHEAD]),
        frames=Rows(**tables[FRAME]),
        waits=Waits(**tables[WAIT]),
        names=[analysed(name) for name in codes["name"]],
        shapes=list(codes["shape"]),
        inputs=list(codes["inputs"]),
        tracks=list(codes["track"]),
        collectives=[
            Collective(**dict(zip(COLLECTIVE_FIELDS, values, strict=True)))
            for values in codes["collective"]
        ],
        python_functions=joined.counts[PYTHON_FUNCTIONS],
        without_start=sum(joined.without_start[table] for table in COLUMNS),
        odd_times=odd.far + odd.overrunning,
        unfinished=odd.unfinished,
        duplicates=again,
        others={key[1]: rows for key, rows in joined.counts.items() if key[0] == OTHER_DEVICE},
        raw_bytes=trace.raw_bytes,
    )


def _is_gpu_work(table: str, columns: dict[str, Ints]) -> npt.NDArray[np.bool_]:
    return np.full(len(columns["start"]), table == GPU)
