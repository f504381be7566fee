# SPDX-License-Identifier: Apache-2.0
"""When everything of a recorded rank happens in a simulated iteration, not only what has a node.

Between two nodes of a track time is stretched or shrunk evenly: a CPU thread between two points, a
stream from the start of one kernel to its end and to the start of the next. So slices that lie in
each other still do, and an arrow ends where its kernel begins. Threads without a node follow the
thread that runs the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megatron.torch_trace.analysis.replay.kernels.rank_graph import RankGraph
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.categories import awaits_work
from megatron.torch_trace.format.tracks import Identity

TrackKey = tuple[Identity, Identity]
"""Process and thread, or device and stream."""


@dataclass(frozen=True, slots=True)
class Knots:
    """Recorded times of a track, ascending, and the simulated ones; ns of the rank's own clock.

    Args:
        recorded, simulated: the same instants; a time may be there twice, with a wait in between.
        starts: recorded starts of GPU work, ascending; none of a CPU thread.
        begins, ends: when each of it begins and ends in the simulated iteration.
        ended: when it was recorded to end.
    """

    recorded: Ints
    simulated: Ints
    starts: Ints
    begins: Ints
    ends: Ints
    ended: Ints

    def moved(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Simulated starts and ends of what began and ended then."""
        begins = self._at(start, is_end=False)
        ends = np.maximum(self._at(end, is_end=True), begins)
        if len(self.starts):
            at = np.maximum(np.searchsorted(self.starts, start, "right") - 1, 0)
            exact = self.starts[at] == start
            begins = np.where(exact, self.begins[at], begins)
            # An arrow has no length, and its end stays where the work begins.
            whole = exact & (self.ended[at] == end) & (end > start)
            ends = np.where(whole, self.ends[at], np.maximum(ends, begins))
            ends = np.where(end == start, begins, ends)
        return ints(begins), ints(ends)

    def _at(self, times: Ints, *, is_end: bool) -> Ints:
        """The last of equal knots for what begins there, the first for what ends there."""
        old, new = self.recorded, self.simulated
        if is_end:
            after = np.searchsorted(old, times, "left")
            same = old[np.minimum(after, len(old) - 1)] == times
            low = np.where(same, after, after - 1)
        else:
            low = np.searchsorted(old, times, "right") - 1
        below, above = low < 0, low >= len(old) - 1
        low = np.clip(low, 0, max(0, len(old) - 2))
        high = np.minimum(low + 1, len(old) - 1)
        length = np.maximum(1, old[high] - old[low])
        part = (times - old[low]) / length
        inside = new[low] + np.rint(part * (new[high] - new[low])).astype(np.int64)
        found = np.where(times == old[low], new[low], inside)
        found = np.where(above, new[-1] + times - old[-1], found)
        return ints(np.where(below, new[0] + times - old[0], found))


@dataclass(frozen=True, slots=True)
class SimulatedTimes:
    """One rank.

    Args:
        rank: its number.
        path: its recorded trace.
        tracks: knots of each track that has nodes.
        others: knots for every other one: those of the thread that runs the steps.
        gone: correlations of calls that were recorded waiting for the GPU, and wait no more: these
            return before the work is done, which no trace of a run could hold.
    """

    rank: int
    path: Path
    tracks: dict[TrackKey, Knots]
    others: Knots
    gone: frozenset[int] = frozenset()

    def of(self, track: TrackKey) -> Knots:
        """The knots that a track follows."""
        return self.tracks.get(track, self.others)


def simulated_times(
    rank: RankGraph, times: Ints, duration: Ints, freed: Ints | None = None
) -> SimulatedTimes:
    """Of a rank, from the times and durations of all nodes.

    Args:
        rank, times, duration: of the rank, and of all nodes.
        freed: nodes that no longer wait for work of the GPU.
    """
    activity = rank.timeline.activity
    tracks: dict[TrackKey, Knots] = {}
    steps: Knots | None = None
    marks = set(rank.marks.tolist())
    for code, here, knots in _threads(rank, times):
        tracks[activity.tracks[code]] = knots
        if steps is None and not marks.isdisjoint((here + rank.first_point).tolist()):
            steps = knots
    tracks |= _streams(rank, times, duration)
    return SimulatedTimes(
        rank.rank,
        activity.path,
        tracks,
        steps or next(iter(tracks.values())),
        _gone(rank, freed) if freed is not None else frozenset(),
    )


def _gone(rank: RankGraph, freed: Ints) -> frozenset[int]:
    """Of the rank's points that no longer wait, the calls that did nothing else."""
    calls = rank.timeline.activity.calls
    at = freed - rank.first_point
    at = at[(at >= 0) & (at < len(rank.points))]
    call = np.unique(rank.points.call[at])
    waits = rank.timeline.activity.named(calls, awaits_work)
    numbers = calls.correlation[call[(call != NONE) & waits[call]]]
    return frozenset(numbers[numbers > 0].tolist())


def _threads(rank: RankGraph, times: Ints) -> Iterator[tuple[int, Ints, Knots]]:
    points = rank.points
    simulated = times[rank.first_point : rank.first_point + len(points)] - rank.shift
    for code in np.unique(points.track).tolist():
        here = np.flatnonzero(points.track == code)
        none = np.zeros(0, dtype=np.int64)
        later = np.maximum.accumulate(simulated[here])
        yield code, ints(here), Knots(ints(points.time[here]), ints(later), none, none, none, none)


def _streams(rank: RankGraph, times: Ints, duration: Ints) -> dict[TrackKey, Knots]:
    activity = rank.timeline.activity
    gpu, rows = activity.gpu, rank.rows
    has_end = rank.ends != NONE
    begins = times[rank.starts] - rank.shift
    ends = np.where(has_end, times[rank.ends] - rank.shift, begins + duration[rank.starts])
    found: dict[TrackKey, Knots] = {}
    for code in np.unique(gpu.track[rows]).tolist():
        here = np.flatnonzero(gpu.track[rows] == code)
        here = here[np.argsort(gpu.start[rows[here]], kind="stable")]
        start, end = gpu.start[rows[here]], gpu.end[rows[here]]
        old = np.concatenate([start, end])
        new = np.concatenate([begins[here], ends[here]])
        order = np.lexsort((new, old))
        found[activity.tracks[code]] = Knots(
            ints(old[order]),
            ints(np.maximum.accumulate(new[order])),
            ints(start),
            ints(begins[here]),
            ints(ends[here]),
            ints(end),
        )
    return found
