# SPDX-License-Identifier: Apache-2.0
"""Times of events put right: nothing absurd, an end for what has none, nothing twice, sorted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.columns.growing_column import taken
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.integer_arrays import distinct
from megatron.torch_trace.gpu_record.duplicates import written_again
from megatron.torch_trace.tracks.impossible_times import Reach
from megatron.torch_trace.tracks.overruns import cut_overruns

Columns = dict[str, Ints]


@dataclass(slots=True)
class OddTimes:
    """Events whose times cannot be true, and what was done about them.

    Attributes:
        missing: without a start, dropped.
        far: starting, or lasting, absurdly far outside the trace, dropped.
        unfinished: negative duration; on the CPU taken to last to the end of the trace (torch
            writes -1 for what was still running), on the GPU set to 0.
        overrunning: GPU work that went on long after the next one of its stream, cut there: as
            ROCm's tracer writes it, it would hide all idle time.
    """

    missing: int = 0
    far: int = 0
    unfinished: int = 0
    overrunning: int = 0

    def __bool__(self) -> bool:
        return bool(self.missing or self.far or self.unfinished or self.overrunning)


_LEAST_ROWS = 3
"""Fewer rows of a GPU far away from the rest are damage."""


def mend(
    tables: dict[str, Columns],
    on_gpu: Callable[[str, Columns], npt.NDArray[np.bool_]],
    *,
    own_clock: str | None = None,
) -> OddTimes:
    """Take impossible rows out of tables with `start` and `dur`, and mend durations in place.

    Args:
        tables: of one trace, together: what is far away is seen from all of them.
        on_gpu: table and its columns -> which rows are GPU work.
        own_clock: a table that may be on a clock of its own: where most of its rows are far away
            together, they stay.
    """
    odd = OddTimes()
    reach = Reach.of(np.concatenate([table["start"] for table in tables.values()]))
    last = 0
    for name, table in tables.items():
        keep = reach.holds(table["start"], table["dur"])
        apart = (
            name == own_clock and len(keep) >= _LEAST_ROWS and int((~keep).sum()) * 2 > len(keep)
        )
        if apart:
            # No damage: most of the GPU's rows together are on another clock, which is said.
            keep = Reach.of(table["start"]).holds(table["start"], table["dur"])
        if not keep.all():
            odd.far += int((~keep).sum())
            take(table, keep)
        if len(table["start"]) and not apart:
            last = max(last, int((table["start"] + np.maximum(table["dur"], 0)).max()))
    for name, table in tables.items():
        start, dur = table["start"], table["dur"]
        gpu = on_gpu(name, table)
        work = np.flatnonzero(gpu)
        if len(work):
            lengths = dur[work]
            odd.overrunning += cut_overruns(table["track"][work], start[work], lengths)
            dur[work] = lengths
        unfinished = dur < 0
        if unfinished.any():
            odd.unfinished += int(unfinished.sum())
            dur[unfinished] = np.where(gpu, 0, last - start)[unfinished]
    return odd


def take_out_duplicates(tables: dict[str, Columns], names: Sequence[str]) -> list[int]:
    """Rows that are in the trace again are taken out of these tables; how many from each."""
    counts = []
    for name in names:
        table = tables[name]
        start = table["start"]
        of = table.get("correlation", np.zeros(len(start), dtype=np.int64))
        again = written_again(start, table["dur"], table["track"], table["name"], of)
        counts.append(int(again.sum()))
        if counts[-1]:
            take(table, ~again)
    return counts


def as_intervals(table: Columns) -> None:
    """Durations to ends, where they are: the columns of a large trace are large. Rows sorted."""
    start, end = table["start"], table.pop("dur")
    end += start
    table["end"] = end
    behind = (start[1:] < start[:-1]) | ((start[1:] == start[:-1]) & (end[1:] > end[:-1]))
    if behind.any():
        take(table, nested_order(start, end))


def nested_order(start: Ints, end: Ints) -> Ints:
    """Positions sorted by start, of equal starts the longer first, of equal times as they are.

    Few begin together, and what is sorted in parts is sorted fast: half of the time of a lexsort.
    """
    order = np.argsort(start, kind="stable")
    begin = start[order]
    together = np.flatnonzero(begin[1:] == begin[:-1])
    together = distinct(np.concatenate((together, together + 1)))
    some = order[together]
    order[together] = some[np.lexsort((-end[some], start[some]))]
    return ints(order)


def take(table: Columns, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> None:
    """Keep these rows of a table, in this order."""
    for column in table:
        table[column] = taken(table[column], rows)
