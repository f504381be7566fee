# SPDX-License-Identifier: Apache-2.0
"""What the CPU did while the GPU was idle and nothing was launched: who holds up the launches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from megatron.torch_trace.analysis.host.garbage_collections import COLLECTOR
from megatron.torch_trace.analysis.host.python_frames import function_name, own_times
from megatron.torch_trace.analysis.host.threads import Threads
from megatron.torch_trace.analysis.timeline.moment import Moment, longest
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Intervals, Ints, ints

PYTHON, CALL, COLLECTION = "python", "call", "collection"
_MOST = 10


@dataclass(frozen=True, slots=True)
class IdleHolder:
    """A Python function, a call of the runtime, or the collector, in which the CPU was meanwhile.

    Args:
        kind: `python`, `call` or `collection`.
        name: `file(line): name`, or `cudaLaunchKernel`, `cudaMalloc`, ..., or `COLLECTOR`.
        times: frames or calls; of collections, stretches of idle time with one.
        time_ns: how much of them the GPU was idle, functions without what they call, and whatever
            else without the collections in it.
        longest: where that was longest in one of them.
    """

    kind: str
    name: str
    times: int
    time_ns: int
    longest: Moment | None = field(default=None, compare=False)


def idle_holders(
    timeline: Timeline, held: Iterable[tuple[Threads, Intervals, Intervals]]
) -> tuple[IdleHolder, ...]:
    """The longest of each kind.

    Args:
        held: groups of threads, when the GPU waited for their launches, and when they collected
            garbage.
    """
    groups = [(group, idle, idle.intersect(stops)) for group, idle, stops in held]
    found = _collector([stopped for _, _, stopped in groups])
    for kind in (PYTHON, CALL):
        totals: dict[str, _Total] = {}
        for group, idle, stopped in groups:
            if len(idle):
                _add(totals, timeline, kind, group, idle.minus(stopped))
        rows = [
            IdleHolder(kind, name, one.times, one.time_ns, one.longest)
            for name, one in totals.items()
        ]
        found += sorted(rows, key=lambda row: (-row.time_ns, row.name))[:_MOST]
    return tuple(sorted(found, key=lambda row: (-row.time_ns, row.name)))


def _collector(stopped: Iterable[Intervals]) -> list[IdleHolder]:
    total = _Total()
    for one in stopped:
        where = longest(one.starts, one.ends) if len(one) else None
        if where is not None:
            total.add(one.total, len(one), where)
    if total.longest is None:
        return []
    return [IdleHolder(COLLECTION, COLLECTOR, total.times, total.time_ns, total.longest)]


@dataclass(slots=True)
class _Total:
    times: int = 0
    time_ns: int = 0
    longest: Moment | None = None

    def add(self, time_ns: int, times: int, longest: Moment) -> None:
        self.times += times
        self.time_ns += time_ns
        if self.longest is None or longest.duration_ns > self.longest.duration_ns:
            self.longest = longest


def _add(
    totals: dict[str, _Total], timeline: Timeline, kind: str, group: Threads, idle: Intervals
) -> None:
    activity = timeline.activity
    table = activity.frames if kind == PYTHON else activity.calls
    tracks = group.frames if kind == PYTHON else group.tracks
    time = idle.covered(table.start, table.end)
    rows = np.flatnonzero(tracks[table.track] & (time > 0))
    if kind == PYTHON:
        # A stable order by thread: each thread's frames nest.
        rows = rows[np.argsort(table.track[rows], kind="stable")]
        time[rows] = own_times(table.start[rows], table.end[rows], table.track[rows], time[rows])
    for code, mine in _by_code(ints(table.name[rows])):
        here = rows[mine]
        at = here[int(time[here].argmax())]
        start, end = int(table.start[at]), int(table.end[at])
        name = function_name(activity.names[code]) if kind == PYTHON else activity.names[code]
        totals.setdefault(name, _Total()).add(
            int(time[here].sum()), len(here), Moment(start, end - start)
        )


def _by_code(codes: Ints) -> Iterable[tuple[int, Ints]]:
    """Every code with the positions that have it."""
    order = np.argsort(codes, kind="stable")
    values, first = np.unique(codes[order], return_index=True)
    return zip(values.tolist(), np.split(order, first[1:]), strict=len(values) > 0)
