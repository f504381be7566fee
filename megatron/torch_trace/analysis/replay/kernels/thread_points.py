# SPDX-License-Identifier: Apache-2.0
"""Points on the CPU threads of one rank, between which the CPU works without looking at the GPU.

    main      mark   launch   wait====return     leave ............ enter   launch
    autograd                                     first launch launch last

Autograd runs the backward pass on a thread of its own while the main one waits and notes nothing:
in the gap between two notes of the main thread everything from the first to the last note of
autograd's is a hand-over, there and back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.replay.kernels.launch_times import LaunchTimes
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.autograd import runs_backward
from megatron.torch_trace.analysis.timeline.code_columns import present
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.categories import awaits_work
from megatron.torch_trace.format.integer_arrays import distinct

RETURN, ENTER, FIRST, MARK, LAUNCH, WAIT, LAST, LEAVE = range(8)
"""Codes of `ThreadPoints.role`, in the order in which they stand at one time."""

_LEAST_BURST = 4
"""So many notes autograd's thread makes on average in one hand-over, else it is another thread."""


@dataclass(frozen=True, slots=True)
class ThreadPoints:
    """By track and time.

    Args:
        time: ns since the trace's base time.
        track: code into `activity.tracks`.
        role: RETURN to LEAVE.
        call: row of `activity.calls` of LAUNCH, WAIT and RETURN; else NONE.
        partner: of FIRST the LEAVE that let it begin, of ENTER the LAST, of RETURN its WAIT: the
            position here; else NONE.
    """

    time: Ints
    track: Ints
    role: Ints
    call: Ints
    partner: Ints

    def __len__(self) -> int:
        return len(self.time)

    def at(self, role: int) -> Ints:
        """Positions of the points of one role."""
        return np.flatnonzero(self.role == role)

    def of_calls(self, calls: int) -> Ints:
        """For each row of `activity.calls`, its LAUNCH or WAIT here; NONE where there is none."""
        found = np.full(calls + 1, NONE, dtype=np.int64)
        for role in (WAIT, LAUNCH):
            # A call that waits for room launches after that.
            begins = self.at(role)
            found[self.call[begins]] = begins
        found[-1] = NONE
        return found


def main_track(timeline: Timeline) -> int:
    """Track of the training loop's thread: of the steps, else of the most launches; or NONE."""
    if timeline.window.track != NONE:
        return timeline.window.track
    tracks = timeline.launches.track
    tracks = tracks[tracks != NONE]
    return int(np.bincount(tracks).argmax()) if len(tracks) else NONE


def thread_points(timeline: Timeline, times: LaunchTimes) -> ThreadPoints:
    """All points within the steps of the window.

    Args:
        timeline: of the rank.
        times: when its calls launch.
    """
    activity, window = timeline.activity, timeline.window
    calls, main = activity.calls, main_track(timeline)
    until = max((step.cpu_end for step in window.steps), default=window.end)
    inside = (calls.start >= window.start) & (calls.start < until)
    waits = np.flatnonzero(activity.named(calls, awaits_work) & inside)
    waits = waits[calls.end[waits] <= until]
    launching = distinct(timeline.launches.call[timeline.launches.call != NONE])
    launching = launching[inside[launching]]
    full = launching[times.waited[launching]]
    marks = ints([*(step.start for step in window.steps), until] if window.steps else [])
    parts = [
        _part(times.begin[launching], ints(calls.track[launching]), LAUNCH, ints(launching)),
        _part(calls.start[full], ints(calls.track[full]), WAIT, ints(full)),
        _part(times.begin[full], ints(calls.track[full]), RETURN, ints(full)),
        _part(calls.start[waits], ints(calls.track[waits]), WAIT, ints(waits)),
        _part(calls.end[waits], ints(calls.track[waits]), RETURN, ints(waits)),
        _part(marks, np.full(len(marks), main), MARK, np.full(len(marks), NONE)),
    ]
    working = {*present(calls.track[launching]), *present(calls.track[waits])} - {main}
    parts += _handovers(timeline, main, until, sorted(working))
    columns = np.concatenate(parts, axis=1)
    time, track, role, call, group = columns
    order = np.lexsort((role, time, track))
    time, track, role, call, group = columns[:, order]
    return ThreadPoints(time, track, role, call, _partners(role, call, group))


def _part(time: Ints, track: Ints, role: int, call: Ints, group: Ints | None = None) -> Ints:
    none = np.full(len(time), NONE, dtype=np.int64)
    kind = np.full(len(time), role, dtype=np.int64)
    return ints(np.stack((time, track, kind, call, none if group is None else group)))


def _partners(role: Ints, call: Ints, group: Ints) -> Ints:
    found = np.full(len(role), NONE, dtype=np.int64)
    for one, other, key in ((RETURN, WAIT, call), (FIRST, LEAVE, group), (ENTER, LAST, group)):
        mine, its = np.flatnonzero(role == one), np.flatnonzero(role == other)
        found[mine[np.argsort(key[mine])]] = its[np.argsort(key[its])]
    return found


def _handovers(timeline: Timeline, main: int, until: int, others: list[int]) -> list[Ints]:
    """LEAVE, FIRST, LAST and ENTER of every time that another thread works for the main one."""
    activity, window = timeline.activity, timeline.window
    if main == NONE or not others:
        return []
    notes = _notes(timeline, main)
    nodes = activity.ops.track[runs_backward(activity)]
    backward = np.bincount(nodes, minlength=len(activity.tracks))
    parts: list[Ints] = []
    count = 0
    for track in others:
        times = _notes(timeline, track)
        times = times[(times >= window.start) & (times <= until)]
        gap = np.searchsorted(notes, times)
        times, gap = times[(gap > 0) & (gap < len(notes))], gap[(gap > 0) & (gap < len(notes))]
        if not len(times):
            continue
        first = np.flatnonzero(np.diff(gap, prepend=-1))
        last = np.append(first[1:], len(gap)) - 1
        if not backward[track] and len(times) < _LEAST_BURST * len(first):
            continue
        group = count + np.arange(len(first))
        count += len(first)
        leave, enter = notes[gap[first] - 1], notes[gap[first]]
        keep = (leave >= window.start) & (enter <= until)
        none = np.full(int(keep.sum()), NONE, dtype=np.int64)
        here, there = np.full(len(none), track), np.full(len(none), main)
        parts += [
            _part(leave[keep], there, LEAVE, none, group[keep]),
            _part(times[first][keep], here, FIRST, none, group[keep]),
            _part(times[last][keep], here, LAST, none, group[keep]),
            _part(enter[keep], there, ENTER, none, group[keep]),
        ]
    return parts


def _notes(timeline: Timeline, track: int) -> Ints:
    """When anything begins or ends on a thread, ascending."""
    activity = timeline.activity
    times = []
    for rows in (activity.calls, activity.ops):
        mine = rows.track == track
        times += [rows.start[mine], rows.end[mine]]
    # numpy's own unique hashes, which takes many times as long.
    # A stable sort of what is sorted in parts takes a seventh of the time of the other one.
    found = np.sort(np.concatenate(times), kind="stable")
    first = np.ones(len(found), dtype=bool)
    first[1:] = found[1:] != found[:-1]
    return ints(found[first])
