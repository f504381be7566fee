# SPDX-License-Identifier: Apache-2.0
"""Which Python functions hold up the training loop, for traces with stacks.

A function's own time is that of its frame without the frames below it of 0.1 ms and more, and
without operators, runtime calls and the data loader:

    train_step     [------------------------)      own: 24 - 12 - 4 = 8
    log_metrics         [-----------)              own: 12 - 3 = 9
    operators         [---)     [--)  [--)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.activity_tables import LEAST_FRAME_NS
from megatron.torch_trace.columns.intervals import Intervals, Ints, ints

_OBJECT = re.compile(r" of \S+ object at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class PythonRow:
    """One function.

    Args:
        function: `file(line): name`, as torch writes it.
        calls: frames of 0.1 ms and more in the window.
        self_ns: sum of their own times.
    """

    function: str
    calls: int
    self_ns: int


def python_rows(timeline: Timeline, elsewhere: Intervals) -> tuple[PythonRow, ...]:
    """Functions of the loop's thread, by their own time in ns (docs/computed.md, "Python").

    Args:
        timeline: one rank.
        elsewhere: when that thread was not in Python itself.
    """
    activity, window = timeline.activity, timeline.window
    frames = activity.frames
    if window.track == NONE or not len(frames):
        return ()
    mine = activity.on_thread(frames, window.track)
    # Frames of modules are there whatever their length.
    mine &= frames.end - frames.start >= LEAST_FRAME_NS
    rows = np.flatnonzero(mine & (frames.end > window.start) & (frames.start < window.end))
    starts = np.maximum(frames.start[rows], window.start)
    ends = np.minimum(frames.end[rows], window.end)
    alone = ints(ends - starts - elsewhere.covered(starts, ends))
    own = own_times(starts, ends, ints(frames.track[rows]), alone).tolist()
    totals: dict[str, list[int]] = {}
    for code, time in zip(frames.name[rows].tolist(), own, strict=True):
        entry = totals.setdefault(function_name(activity.names[code]), [0, 0])
        entry[0] += 1
        entry[1] += time
    found = [PythonRow(name, *entry) for name, entry in totals.items()]
    return tuple(sorted(found, key=lambda row: (-row.self_ns, row.function)))


def function_name(frame: str) -> str:
    """Of a frame; the same method of two objects is the same function."""
    return _OBJECT.sub("", frame)


def own_times(start: Ints, end: Ints, track: Ints, time: Ints) -> Ints:
    """What of each frame's time is not that of the frames right below it.

    Args:
        start, end, track: of the frames; each track's together, by start, the longer ones first.
        time: of each frame with all that is below it, ns; all are of shape (frames,), as is what is
            returned.
    """
    ends, whole = end.tolist(), time.tolist()
    own = list(whole)
    open_: list[int] = []
    thread = None
    for position, (begin, finish, where) in enumerate(
        zip(start.tolist(), ends, track.tolist(), strict=True)
    ):
        if where != thread:
            thread, open_ = where, []
        while open_ and ends[open_[-1]] <= begin:
            open_.pop()
        # One that crosses the frame around it is taken out of nothing.
        if open_ and finish <= ends[open_[-1]]:
            own[open_[-1]] -= whole[position]
        open_.append(position)
    return np.maximum(ints(own), 0)
