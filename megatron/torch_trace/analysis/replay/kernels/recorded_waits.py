# SPDX-License-Identifier: Apache-2.0
"""Waits as the trace tells them, where it was recorded with `enable_cuda_sync_events`.

cudaEventRecord   on stream 7, correlation 41         what is waited for: the last work before it
Stream Wait Event stream 23, wait_on_stream 7, of 41  what waits: the next work on stream 23
Event Sync        wait_on_stream 7, of 41             the call returns when that work has ended
Stream Sync       stream 7                            ... when all of the stream has
"""

from __future__ import annotations

import numpy as np

from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.integer_arrays import distinct


class LaunchedWork:
    """Some GPU work, in the order of launch.

    Args:
        rows: positions.
        launched: when each position was launched, ns.
    """

    def __init__(self, rows: Ints, launched: Ints) -> None:
        self.rows, self.launched = rows, launched[rows]

    def last(self, before: int) -> int | None:
        """The last that was launched before a time."""
        at = int(np.searchsorted(self.launched, before)) - 1
        return int(self.rows[at]) if at >= 0 else None

    def first(self, after: int) -> int | None:
        """The first that was launched at a time or later."""
        at = int(np.searchsorted(self.launched, after))
        return int(self.rows[at]) if at < len(self.rows) else None


def by_stream(timeline: Timeline, rows: Ints) -> dict[int, LaunchedWork]:
    """Work of each stream; positions are in `rows`."""
    launched, stream = timeline.launches.time[rows], timeline.activity.gpu.stream[rows]
    order = np.argsort(launched, kind="stable")
    # Not `present`: the number of a stream is no code, and may be as large as an address.
    streams = distinct(stream[stream >= 0]).tolist()
    return {one: LaunchedWork(order[stream[order] == one], ints(launched)) for one in streams}


class RecordedWaits:
    """The waits that a rank's trace tells.

    Args:
        timeline: of the rank.
        rows: rows of `activity.gpu`, by start; positions are in these.
    """

    def __init__(self, timeline: Timeline, rows: Ints) -> None:
        self.activity = timeline.activity
        self.waits = self.activity.waits
        self.streams = by_stream(timeline, rows) if len(self.waits) else {}
        calls = self.activity.calls
        self._known = np.argsort(calls.correlation, kind="stable")

    def __len__(self) -> int:
        return len(self.waits)

    def of_streams(self) -> tuple[Ints, Ints]:
        """Work that is waited for, and the work of another stream that waits."""
        sources, targets = [], []
        for row in np.flatnonzero(self._kind("streamwait")).tolist():
            source = self._awaited(row)
            own = self.streams.get(int(self.waits.stream[row]))
            target = own.first(self._time(int(self.waits.correlation[row]), row)) if own else None
            if source is not None and target is not None and source != target:
                sources.append(source)
                targets.append(target)
        return ints(sources), ints(targets)

    def of_calls(self) -> dict[int, int]:
        """Correlation of a call that waits -> the work after which it returns."""
        found = {}
        for row in np.flatnonzero(self._kind("eventsync")).tolist():
            source = self._awaited(row)
            if source is not None:
                found[int(self.waits.correlation[row])] = source
        for row in np.flatnonzero(self._kind("streamsync")).tolist():
            own = self.streams.get(int(self.waits.stream[row]))
            number = int(self.waits.correlation[row])
            last = own.last(self._time(number, row)) if own else None
            if last is not None:
                found[number] = last
        return found

    def _kind(self, word: str) -> np.ndarray:
        return self.activity.named(
            self.waits, lambda name: name.lower().replace(" ", "").startswith(word)
        )

    def _awaited(self, row: int) -> int | None:
        """The last work before the event of a wait was recorded."""
        stream, record = int(self.waits.waits_on[row]), int(self.waits.record[row])
        work = self.streams.get(stream)
        if work is None or record == NONE or self._call(record) is None:
            return None
        return work.last(self._time(record, row))

    def _call(self, correlation: int) -> int | None:
        numbers = self.activity.calls.correlation
        at = int(np.searchsorted(numbers, correlation, sorter=self._known))
        if at >= len(numbers) or int(numbers[self._known[at]]) != correlation:
            return None
        return int(self._known[at])

    def _time(self, correlation: int, row: int) -> int:
        """When a call began; where it is not in the trace, the wait itself."""
        call = self._call(correlation)
        if call is None:
            return int(self.waits.start[row])
        return int(self.activity.calls.start[call])
