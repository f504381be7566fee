# SPDX-License-Identifier: Apache-2.0
"""Times of events put right: ends instead of durations, nothing absurd, everything sorted."""

from __future__ import annotations

import numpy as np

from megatron.torch_trace.columns.block_activity import CALL, GPU
from megatron.torch_trace.columns.intervals import Ints
from megatron.torch_trace.gpu_record.duplicates import written_again
from megatron.torch_trace.tracks.impossible_times import Reach
from megatron.torch_trace.tracks.overruns import cut_overruns


def take_out_duplicates(tables: dict[str, dict[str, Ints]]) -> int:
    """GPU rows, and calls, that are in the trace again are taken out; how many GPU rows were."""
    counts = []
    for name in (GPU, CALL):
        table = tables[name]
        start = table["start"]
        of = table.get("correlation", np.zeros(len(start), dtype=np.int64))
        again = written_again(start, table["dur"], table["track"], table["name"], of)
        counts.append(int(again.sum()))
        if counts[-1]:
            for column in table:
                table[column] = table[column][~again]
    return counts[0]


_LEAST_ROWS = 3
"""Fewer rows of a GPU far away from the rest are damage."""


def mend(tables: dict[str, dict[str, Ints]]) -> tuple[int, int]:
    """Durations to ends, absurd times out, rows sorted; how many were absurd, how many unfinished.

    A negative duration is torch's mark of what still ran: on the CPU to the end of the trace, on
    the GPU for an unknown time, counted as none. GPU work that overruns the next one of its stream
    by more than a second, as ROCm's tracer writes it, is cut there: it would hide all idle time.
    """
    reach = Reach.of(np.concatenate([t["start"] for t in tables.values()]))
    odd = unfinished = 0
    last = 0
    for name, table in tables.items():
        keep = reach.holds(table["start"], table["dur"])
        apart = name == GPU and len(keep) >= _LEAST_ROWS and int((~keep).sum()) * 2 > len(keep)
        if apart:
            # No damage: most of the GPU's rows together are on another clock, which is said.
            keep = Reach.of(table["start"]).holds(table["start"], table["dur"])
        if not keep.all():
            odd += int((~keep).sum())
            for column in table:
                table[column] = table[column][keep]
        if keep.any() and not apart:
            last = max(last, int((table["start"] + np.maximum(table["dur"], 0)).max()))
    work = tables[GPU]
    odd += cut_overruns(work["track"], work["start"], work["dur"])
    for name, table in tables.items():
        start, end = table["start"], table.pop("dur")
        negative = end < 0
        # Durations become ends where they are: the columns of a large trace are large.
        np.maximum(end, 0, out=end)
        end += start
        if negative.any():
            unfinished += int(negative.sum())
            if name != GPU:
                end[negative] = last
        table["end"] = end
        behind = (start[1:] < start[:-1]) | ((start[1:] == start[:-1]) & (end[1:] > end[:-1]))
        if behind.any():
            order = np.lexsort((-end, start))
            for column in table:
                table[column] = table[column][order]
    return odd, unfinished
