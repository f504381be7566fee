# SPDX-License-Identifier: Apache-2.0
"""Which Python functions hold up the training loop, for traces with stacks.

A function's own time is that of its frame without the frames below it of 1 ms and more, and without
operators, runtime calls and the data loader:

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
from megatron.torch_trace.columns.block_activity import LEAST_FRAME_NS
from megatron.torch_trace.columns.intervals import Intervals

_OBJECT = re.compile(r" of \S+ object at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class PythonRow:
    """One function.

    Args:
        function: `file(line): name`, as torch writes it.
        calls: frames of 1 ms and more in the window.
        self_ns: sum of their own times.
    """

    function: str
    calls: int
    self_ns: int


def python_rows(timeline: Timeline, elsewhere: Intervals) -> tuple[PythonRow, ...]:
    """Functions of the loop's thread, by their own time.

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
    own = (ends - starts - elsewhere.covered(starts, ends)).tolist()
    whole = list(own)
    open_: list[int] = []
    for position, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        while open_ and ends[open_[-1]] <= start:
            open_.pop()
        # One that crosses the frame around it is taken out of nothing.
        if open_ and end <= ends[open_[-1]]:
            own[open_[-1]] -= whole[position]
        open_.append(position)
    totals: dict[str, list[int]] = {}
    for code, time in zip(frames.name[rows].tolist(), own, strict=True):
        # The same method of two objects is the same function.
        name = _OBJECT.sub("", activity.names[code])
        entry = totals.setdefault(name, [0, 0])
        entry[0] += 1
        entry[1] += max(0, time)
    found = [PythonRow(name, *entry) for name, entry in totals.items()]
    return tuple(sorted(found, key=lambda row: (-row.self_ns, row.function)))
