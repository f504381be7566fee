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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.columns.block_slices import (
    COLLECTIVE_ARGS,
    COLLECTIVE_NUMBERS,
    INTEGER_ARGS,
    MISSING,
    BlockColumns,
    Codes,
    Track,
    columns_of,
)
from megatron.torch_trace.format.categories import GPU_WORK
from megatron.torch_trace.reader import Damage, Event, Metadata, Trace
from megatron.torch_trace.tracks.impossible_times import Reach
from megatron.torch_trace.tracks.overruns import cut_overruns

if TYPE_CHECKING:
    import polars as pl


@dataclass(slots=True)
class OddTimes:
    """Events whose times cannot be true, and what was done about them.

    Attributes:
        missing: without a start, dropped.
        far: starting, or lasting, absurdly far outside the trace, dropped.
        unfinished: negative duration; on the CPU taken to last to the end of the trace (torch
            writes -1 for what was still running), on the GPU set to 0.
        overrunning: GPU work that went on long after the next one of its stream, cut there.
    """

    missing: int = 0
    far: int = 0
    unfinished: int = 0
    overrunning: int = 0

    def __bool__(self) -> bool:
        return bool(self.missing or self.far or self.unfinished or self.overrunning)


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
    track_names: dict[Track, str] = field(default_factory=dict)

    def name_codes(self, wanted: Collection[str]) -> list[int]:
        """Codes of the given names, for filters on column `name`."""
        return [code for code, name in enumerate(self.names) if name in wanted]


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
    """
    trace = Trace(path, strict=strict)
    gathered = _Gathered()
    look = partial(columns_of, frozenset(without))
    for columns in trace.map(look, Event, workers=workers, small_results=True):
        gathered.add(columns)
    return gathered.table(trace)


class _Gathered:
    def __init__(self) -> None:
        self.parts: dict[str, list[NDArray[np.int64]]] = {}
        self.names, self.categories, self.tracks = Codes(), Codes(), Codes()
        self.collectives: list[tuple[Any, ...]] = []
        self.track_names: dict[Track, str] = {}
        self.odd = OddTimes()

    def add(self, columns: BlockColumns) -> None:
        numbers = columns.numbers
        for key, codes, values in (
            ("name", self.names, columns.names),
            ("category", self.categories, columns.categories),
            ("track", self.tracks, columns.tracks),
        ):
            numbers[key] = codes.of(values)[numbers[key]] if values else numbers[key]
        rows = numbers["args"]
        rows[rows != MISSING] += len(self.collectives)
        for key, array in numbers.items():
            self.parts.setdefault(key, []).append(array)
        self.collectives.extend(columns.collectives)
        self.track_names.update(columns.track_names)
        self.odd.missing += columns.missing

    def table(self, trace: Trace) -> EventTable:
        import polars as pl

        numbers = {key: np.concatenate(parts) for key, parts in self.parts.items()}
        if not numbers:
            keys = ("ts", "dur", "name", "category", "track", *INTEGER_ARGS, "bytes", "args")
            numbers = {key: np.empty(0, dtype=np.int64) for key in keys}
        categories = list(self.categories.codes)
        on_gpu = np.array([c in GPU_WORK for c in categories], dtype=bool)
        keep = self._mend_times(numbers, on_gpu)
        columns: list[pl.Series] = []
        for key, array in numbers.items():
            series = pl.Series(key, array[keep])
            if key == "category":
                names = pl.Series("category", categories, dtype=pl.String)
                series = names.gather(series).cast(pl.Categorical)
            elif key in ("name", "track"):
                series = series.cast(pl.UInt32)
            elif key not in ("ts", "dur"):
                series = series.to_frame().select(
                    pl.when(pl.col(key) != MISSING).then(pl.col(key))
                )[key]
            columns.append(series)
        slices = pl.DataFrame(columns).with_columns(pl.col("args").cast(pl.UInt32))
        schema: dict[str, Any] = {
            key: pl.Int64 if key in COLLECTIVE_NUMBERS else pl.String for key in COLLECTIVE_ARGS
        }
        return EventTable(
            path=trace.path,
            metadata=trace.metadata,
            damage=trace.damage,
            base_ns=trace.metadata.base_time_ns,
            slices=slices,
            collectives=pl.DataFrame(self.collectives, schema=schema, orient="row"),
            names=list(self.names.codes),
            tracks=list(self.tracks.codes),
            odd_times=self.odd,
            track_names=self.track_names,
        )

    def _mend_times(
        self, numbers: dict[str, NDArray[np.int64]], on_gpu: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Mend durations in place; which rows to keep."""
        ts, dur = numbers["ts"], numbers["dur"]
        if not len(ts):
            return np.ones(0, dtype=bool)
        keep = Reach.of(ts).holds(ts, dur)
        self.odd.far = int((~keep).sum())
        unfinished = keep & (dur < 0)
        self.odd.unfinished = int(unfinished.sum())
        if self.odd.unfinished:
            end = int((ts + np.maximum(dur, 0))[keep].max())
            gpu = on_gpu[numbers["category"]]
            dur[unfinished] = np.where(gpu, 0, end - ts)[unfinished]
        work = np.flatnonzero(keep & on_gpu[numbers["category"]])
        lengths = dur[work]
        self.odd.overrunning = cut_overruns(numbers["track"][work], ts[work], lengths)
        dur[work] = lengths
        return keep
