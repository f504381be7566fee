# SPDX-License-Identifier: Apache-2.0
"""Where the thread of the training loop spends the window, by path: what encloses what, in time.

    train_step          [------------------------)      time 24, own 24 - 10 - 6 = 8
      forward               [----------)                time 10, own 10 - 4 = 6
        aten::mm               [----)                   time 4
      optimizer                            [------)     time 6

Equal names in the same path are one row, and so are names that differ in a number only: layers,
micro-batches, objects. Of every row, exactly:

    time_ns = self_ns + others_ns + time_ns of the rows that lie right in it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from megatron.torch_trace.analysis.host.loop_slices import CALL as CALL
from megatron.torch_trace.analysis.host.loop_slices import OPERATOR as OPERATOR
from megatron.torch_trace.analysis.host.loop_slices import PYTHON as PYTHON
from megatron.torch_trace.analysis.host.loop_slices import SPAN as SPAN
from megatron.torch_trace.analysis.host.loop_slices import Slices, levels, slices_of
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.moment import Moment
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints, ints

THREAD = "thread"
"""The kind of the first row; the others have those of their slices."""

LEAST_SHARE = 0.005
"""Part of the window from which a path has a row of its own."""
MOST_ROWS = 160
"""Rows that are kept of a rank; an analysis holds those of thousands of ranks."""


@dataclass(frozen=True, slots=True)
class LoopPath:
    """One path of names on the thread of the training loop. Times are ns, cut to the window.

    Args:
        number: position of the row in its table, from 0.
        above: number of the row that it lies in; None of the first row, which is the thread itself,
            with the whole window.
        kind: `thread`, `python`, `span`, `operator` or `call`, the last one of the runtime.
        name: what its slices are called, `*` and nothing for numbers that differ.
        calls: slices.
        time_ns: in them.
        self_ns: of that, in nothing that is recorded inside them.
        others_ns: of that, in what lies right in them and has no row of its own.
        others: how many paths these are.
        longest: the longest slice; None of the thread.
    """

    number: int
    above: int | None
    kind: str
    name: str
    calls: int
    time_ns: int
    self_ns: int
    others_ns: int = 0
    others: int = 0
    longest: Moment | None = field(default=None, compare=False)


def loop_paths(timeline: Timeline) -> tuple[LoopPath, ...]:
    """The thread, then its paths, each before those in it and the longest of several first.

    Empty for a trace in which nothing tells the thread, or nothing is recorded on it.

    Args:
        timeline: one rank.

    Source: docs/computed.md, "The training loop's thread".
    """
    slices = slices_of(timeline)
    if slices is None:
        return ()
    grown = _Growing(slices, timeline.window.length)
    return tuple(grown.rows())


@dataclass(slots=True)
class _Path:
    """A path that may get a row; `inside` is how many lie right in it, and their time."""

    above: int
    name: int
    calls: int
    time: int
    longest: Moment | None
    inside: tuple[int, int] = (0, 0)


class _Growing:
    """Paths from the thread on: only what is long enough is looked into."""

    def __init__(self, slices: Slices, length: int) -> None:
        self._slices = slices
        self._least = max(1.0, LEAST_SHARE * length)
        self._paths = [_Path(NONE, NONE, 1, length, None)]
        above, path = ints([]), ints([])
        for level, rows in enumerate(levels(slices.start, slices.end)):
            if level:
                at = np.searchsorted(above, rows) - 1
                holder = above[np.maximum(at, 0)] if len(above) else rows
                # Of what has no row what lies in it has none; then the last one has ended before.
                kept = (at >= 0) & (slices.end[holder] > slices.start[rows])
                rows, around = rows[kept], path[at[kept]]
            else:
                around = np.zeros(len(rows), dtype=np.int64)
            if not len(rows):
                break
            above, path = self._grow(rows, around)

    def _grow(self, rows: Ints, around: Ints) -> tuple[Ints, Ints]:
        """Add the paths of a level; the rows of those that are long enough, and their paths."""
        slices, count = self._slices, len(self._slices.names)
        length = slices.end[rows] - slices.start[rows]
        key = around * count + slices.name[rows]
        order = np.argsort(key, kind="stable")
        first = np.flatnonzero(np.diff(key[order], prepend=-1))
        times = np.add.reduceat(length[order], first).tolist()
        bounds = np.append(first, len(order)).tolist()
        path = np.full(len(rows), NONE, dtype=np.int64)
        for begin, end, time in zip(bounds, bounds[1:], times, strict=False):
            mine = order[begin:end]
            holder, name = divmod(int(key[mine[0]]), count)
            paths, total = self._paths[holder].inside
            self._paths[holder].inside = (paths + 1, total + time)
            if time < self._least:
                continue
            path[mine] = len(self._paths)
            row = rows[mine[length[mine].argmax()]]
            moment = Moment(int(slices.start[row]), int(slices.end[row] - slices.start[row]))
            self._paths.append(_Path(holder, name, end - begin, time, moment))
        return rows[path != NONE], path[path != NONE]

    def rows(self) -> Iterator[LoopPath]:
        """Of the `MOST_ROWS` longest paths, what encloses first."""
        paths = self._paths
        # What encloses is as long at least, and was found before.
        kept = set(sorted(range(len(paths)), key=lambda one: -paths[one].time)[:MOST_ROWS])
        below: dict[int, list[int]] = {one: [] for one in kept}
        for one in sorted(kept - {0}, key=lambda one: (-paths[one].time, one)):
            below[paths[one].above].append(one)
        numbers: dict[int, int] = {NONE: NONE}
        waiting = [0]
        while waiting:
            one = waiting.pop()
            numbers[one] = len(numbers) - 1
            yield self._row(one, numbers, below[one])
            waiting += reversed(below[one])

    def _row(self, one: int, numbers: dict[int, int], below: list[int]) -> LoopPath:
        path, is_thread = self._paths[one], one == 0
        kind, name = (THREAD, "") if is_thread else self._slices.names[path.name]
        inside, time = path.inside
        return LoopPath(
            number=numbers[one],
            above=None if is_thread else numbers[path.above],
            kind=kind,
            name=name,
            calls=path.calls,
            time_ns=path.time,
            self_ns=path.time - time,
            others_ns=time - sum(self._paths[child].time for child in below),
            others=inside - len(below),
            longest=path.longest,
        )
