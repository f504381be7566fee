# SPDX-License-Identifier: Apache-2.0
"""From blocks of events to columns: one row a slice, times in integer nanoseconds.

    table = read_table("rank-0.json.gz")
    table.slices     polars frame, one row per event with a duration, in the order of the file
    table.names      what the codes in column `name` mean
    table.tracks     what the codes in column `track` mean: (pid, tid)
    table.metadata   rank, groups, devices, base time

Columns of `slices` (all times in ns, relative to `table.base_ns`; add it for absolute time):

    category  Categorical   present name, see `vocabulary`    name     UInt32   index into `names`
    track     UInt32        index into `tracks`               ts, dur  Int64    never negative
    stream, device, correlation, external_id, ev_idx, sequence_number, fwd_thread_id, python_id,
    python_parent_id, bytes   Int64, null where the event has none
    args      UInt32        row of `collectives`, null for all that has no collective arguments

Columns of `collectives`, as torch wrote them: collective, in_nelems, out_nelems, group_size, dtype,
group_name, group_description, group_ranks, in_split, out_split, seq, src_rank, dst_rank.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megatron.torch_trace.columns import slice_columns
from megatron.torch_trace.columns.builder import BlockColumns
from megatron.torch_trace.columns.intervals import Ints
from megatron.torch_trace.columns.joined_columns import JoinedColumns
from megatron.torch_trace.columns.slice_columns import (
    COLLECTIVE_ARGS,
    COLLECTIVE_NUMBERS,
    MISSING,
    SLICE,
    SliceBuilder,
)
from megatron.torch_trace.columns.true_times import OddTimes, mend
from megatron.torch_trace.format.categories import GPU_WORK
from megatron.torch_trace.format.tracks import Track
from megatron.torch_trace.reader import Damage, Metadata, Trace

if TYPE_CHECKING:
    import polars as pl


@dataclass(slots=True)
class EventTable:
    """The slices of one trace as columns; the module's docstring lists them."""

    path: Path
    metadata: Metadata
    damage: Damage
    base_ns: int
    slices: pl.DataFrame
    collectives: pl.DataFrame
    names: list[str]
    tracks: list[Track]
    odd_times: OddTimes


def read_table(
    path: Path | str,
    *,
    without: Collection[str] = frozenset({"python_function"}),
    workers: int = 1,
    strict: bool = False,
) -> EventTable:
    """Read one trace into columns.

    Args:
        path: a trace of one rank.
        without: categories to leave out; Python frames are half of a trace with stacks.
        workers: processes to decode with; `reader.available_cores()` for all there are.
        strict: raise StrictError at the first fault.

    Returns:
        The table, one row for each slice, in the order of the file; times are ns since `base_ns`,
        which is ns since 1970. The module's docstring lists the columns and their types.

    Raises:
        UsageError: the file cannot be read, or is no trace (`NotATraceError`).
        StrictError: see `strict`.
    """
    trace = Trace(path, strict=strict)
    slices = JoinedSlices()
    look = SliceBuilder(without)
    for block in trace.map(look, slice_columns.EVENT, workers=workers, small_results=True):
        slices.add(block)
    return slices.finish(trace)


class JoinedSlices:
    """Blocks of slices joined to a table."""

    def __init__(self) -> None:
        self._joined = JoinedColumns(
            {SLICE: slice_columns.COLUMNS}, slice_columns.CODES, nothing=MISSING
        )

    def add(self, block: BlockColumns) -> None:
        """Append the slices of a block."""
        self._joined.add(block)

    def finish(self, trace: Trace) -> EventTable:
        """The table of a trace that has been read to its end."""
        import polars as pl

        joined = self._joined
        tables, codes = joined.finish(), joined.codes
        on_gpu = np.array([c in GPU_WORK for c in codes["category"]], dtype=bool)
        odd = mend(tables, lambda _, columns: on_gpu[columns["category"]])
        odd.missing = joined.without_start[SLICE]
        schema: dict[str, Any] = {
            key: pl.Int64 if key in COLLECTIVE_NUMBERS else pl.String for key in COLLECTIVE_ARGS
        }
        return EventTable(
            path=trace.path,
            metadata=trace.metadata,
            damage=trace.damage,
            base_ns=trace.metadata.base_time_ns,
            slices=_frame(tables[SLICE], list(codes["category"])),
            collectives=pl.DataFrame(list(codes["args"]), schema=schema, orient="row"),
            names=list(codes["name"]),
            tracks=list(codes["track"]),
            odd_times=odd,
        )


def _frame(table: dict[str, Ints], categories: list[str]) -> pl.DataFrame:
    import polars as pl

    columns: list[pl.Series] = []
    for key, array in table.items():
        series = pl.Series({"start": "ts"}.get(key, key), np.ascontiguousarray(array))
        if key == "category":
            names = pl.Series("category", categories, dtype=pl.String)
            series = names.gather(series.cast(pl.UInt32)).cast(pl.Categorical)
        elif key in ("name", "track"):
            series = series.cast(pl.UInt32)
        elif key not in ("start", "dur"):
            series = series.to_frame().select(pl.when(pl.col(key) != MISSING).then(pl.col(key)))[
                key
            ]
        columns.append(series)
    return pl.DataFrame(columns).with_columns(pl.col("args").cast(pl.UInt32))
