# SPDX-License-Identifier: Apache-2.0
"""What one rank's CPU and GPU did, as columns: the only view of a trace that the analysis has.

    activity = read_activity("rank-0.json.gz")
    activity.gpu        kernels, copies and memsets           one row each, times in integer ns
    activity.calls      runtime and driver calls              correlation says what they launched
    activity.ops        operators and annotations on the CPU  nested by time on their track
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
from megatron.torch_trace.columns.arguments import SlimEventWithArgs
from megatron.torch_trace.columns.block_activity import (
    CALL,
    COLLECTIVE_FIELDS,
    FRAME,
    GPU,
    OP,
    OVERHEAD,
    BlockColumns,
    LookForActivity,
)
from megatron.torch_trace.columns.growing_column import GrowingColumn
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.columns.true_times import mend, take_out_duplicates
from megatron.torch_trace.reader import Damage, Metadata, Trace

NONE = -1
"""Stands for "has none" in columns of ids and codes."""

KERNEL, MEMCPY, MEMSET = 0, 1, 2
"""Codes of `GpuWork.kind`."""


@dataclass(slots=True)
class Rows:
    """Columns of every table.

    Args:
        start, end: ns, half-open.
        name: code into `Activity.names`.
        track: code into `Activity.tracks`.
    """

    start: Ints
    end: Ints
    name: Ints
    track: Ints

    def __len__(self) -> int:
        return len(self.start)


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
class Ops(Rows):
    """Operators and annotations of the CPU, sorted by start, the longer one first.

    Args:
        annotation: True for annotations, False for operators.
        shape: code into `Activity.shapes`, NONE if shapes were not recorded.
        inputs: of attention, code into `Activity.inputs`, NONE if not recorded.
        sequence: autograd's number of the node that the operator makes or runs, NONE if none.
        forward_thread: 0 in the forward pass; in the backward pass torch's number, from 1, of the
            thread that made the node; NONE if not recorded.
        collective: row of `Activity.collectives`, or NONE.
    """

    annotation: npt.NDArray[np.bool_]
    shape: Ints
    inputs: Ints
    sequence: Ints
    forward_thread: Ints
    collective: Ints


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
    gathered = GatheredActivity()
    recorded = trace.read_header().entries
    look = LookForActivity(operators=any(recorded.get(key) for key in _WITH_OPERATORS))
    for block in trace.map(look, SlimEventWithArgs, workers=workers, small_results=True):
        gathered.add(block)
    return gathered.finish(trace)


# Metadata of traces with shapes, with frames of modules, or with spans of them.
_WITH_OPERATORS = ("record_shapes", "with_stack", "torch_profile")

_COLUMNS = {
    GPU: ("start", "dur", "name", "track", "kind", "device", "stream", "correlation", "bytes",
          "collective"),
    CALL: ("start", "dur", "name", "track", "correlation"),
    OP: ("start", "dur", "name", "track", "annotation", "shape", "inputs", "sequence",
         "forward_thread", "collective"),
    OVERHEAD: ("start", "dur", "name", "track"),
    FRAME: ("start", "dur", "name", "track"),
}  # fmt: skip

# Codes and flags are small, and there are millions of them.
_NARROW: dict[str, Any] = {
    "name": np.int32,
    "track": np.int32,
    "shape": np.int32,
    "inputs": np.int32,
    "forward_thread": np.int32,
    "collective": np.int32,
    "annotation": np.bool_,
    "kind": np.int8,
}


def _column(name: str) -> GrowingColumn:
    return GrowingColumn(_NARROW.get(name, np.int64), NONE)


@dataclass(slots=True)
class GatheredActivity:
    """Blocks joined: codes of a block become codes of the file."""

    columns: dict[str, dict[str, GrowingColumn]] = field(
        default_factory=lambda: {
            table: {name: _column(name) for name in names} for table, names in _COLUMNS.items()
        }
    )
    codes: dict[str, dict[Any, int]] = field(
        default_factory=lambda: {
            kind: {} for kind in ("name", "track", "shape", "inputs", "collective")
        }
    )
    others: dict[str, int] = field(default_factory=dict)
    python_functions: int = 0
    without_start: int = 0

    def add(self, block: BlockColumns) -> None:
        self.python_functions += block.python_functions
        self.without_start += block.without_start
        for category, rows in block.others.items():
            self.others[category] = self.others.get(category, 0) + rows
        maps = {}
        for kind, values in block.values.items():
            known = self.codes[kind]
            # One more entry at the end: code -1, "none", stays -1.
            maps[kind] = ints([*(known.setdefault(v, len(known)) for v in values), NONE])
        for table, columns in block.tables.items():
            for name, column in self.columns[table].items():
                if name in columns:
                    array = columns[name]
                    column.add(maps[name][array] if name in maps else array)
                else:
                    column.add_nothing(len(columns["start"]))

    def finish(self, trace: Trace) -> Activity:
        tables: dict[str, dict[str, Ints]] = {}
        absent: list[tuple[str, str, GrowingColumn]] = []
        for table, columns in self.columns.items():
            absent += [(table, name, one) for name, one in columns.items() if one.is_nothing]
            tables[table] = {
                name: one.finish() for name, one in columns.items() if not one.is_nothing
            }
        again = take_out_duplicates(tables)
        odd, unfinished = mend(tables)
        for table, name, column in absent:
            # Mending may have taken rows out.
            tables[table][name] = column.finish()[: len(tables[table]["start"])]
        gpu, calls, ops = (tables[table] for table in (GPU, CALL, OP))
        return Activity(
            path=trace.path,
            metadata=trace.metadata,
            damage=trace.damage,
            base_ns=trace.metadata.base_time_ns,
            gpu=GpuWork(**gpu, op=np.full(len(gpu["start"]), NONE, dtype=np.int32)),
            calls=Calls(**calls),
            ops=Ops(**ops),  # type: ignore[arg-type]
            overhead=Rows(**tables[OVERHEAD]),
            frames=Rows(**tables[FRAME]),
            names=list(self.codes["name"]),
            shapes=list(self.codes["shape"]),
            inputs=list(self.codes["inputs"]),
            tracks=list(self.codes["track"]),
            collectives=[
                Collective(**dict(zip(COLLECTIVE_FIELDS, values, strict=True)))
                for values in self.codes["collective"]
            ],
            python_functions=self.python_functions,
            without_start=self.without_start,
            odd_times=odd,
            unfinished=unfinished,
            duplicates=again,
            others=self.others,
            raw_bytes=trace.raw_bytes,
        )
