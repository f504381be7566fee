# SPDX-License-Identifier: Apache-2.0
"""What the calls that wait for the GPU waited for.

A device is awaited with all that was launched before. Without `enable_cuda_sync_events` the file
tells neither the stream of a `cudaStreamSynchronize` nor the event of a `cudaEventSynchronize`: a
stream is taken to be the one that the thread launched on last, unless another one's work ended when
the call returned; an event to stand behind what ended last before the call returned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.replay.kernels.recorded_waits import (
    LaunchedWork,
    RecordedWaits,
    by_stream,
)
from megatron.torch_trace.analysis.replay.kernels.thread_points import RETURN, ThreadPoints
from megatron.torch_trace.analysis.timeline.code_columns import present
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.categories import awaits_device, awaits_stream

_AFTER_NS = 5_000
"""Work that ends so long after a call returned, by two clocks, may have been what it awaited."""
_USUAL_RETURN_NS = 4_000
_USUAL_COST_NS = 4_000
_SOON_NS = 200_000
"""A call returns within this after what it waited for; else it waited for something unknown."""


@dataclass(frozen=True, slots=True)
class GpuWaits:
    """One row for each piece of work that a call waits for.

    Args:
        work: position in the rank's GPU rows.
        point: position of the RETURN in the rank's points.
        lag: from the end of the work to the return, at least; ns.
        usual: the same, as it usually is here.
        told: the file tells it; else it is inferred.
        cost: for each point of the rank, of a WAIT: ns that the call takes if nothing is awaited.
    """

    work: Ints
    point: Ints
    lag: Ints
    usual: Ints
    told: Ints
    cost: Ints


def gpu_waits(timeline: Timeline, points: ThreadPoints, rows: Ints) -> GpuWaits:
    """Find what is waited for.

    Args:
        timeline, points: of the rank.
        rows: rows of `activity.gpu`, by start.
    """
    activity = timeline.activity
    calls = activity.calls
    look = _Work(timeline, rows)
    recorded = RecordedWaits(timeline, rows).of_calls()
    of_device = activity.named(calls, awaits_device)
    of_stream = activity.named(calls, awaits_stream)
    work: list[int] = []
    point: list[int] = []
    told: list[bool] = []
    returns = points.at(RETURN)
    for at in returns.tolist():
        call = int(points.call[at])
        begin, end = int(calls.start[call]), int(points.time[at])
        track = int(calls.track[call])
        known = recorded.get(int(calls.correlation[call]))
        if known is not None:
            found = [known]
        elif of_device[call]:
            found = look.last_of_streams(begin, end)
        elif of_stream[call]:
            found = look.of_stream(begin, end, track)
        else:
            found = look.of_event(begin, end)
        work += found
        point += [at] * len(found)
        told += [known is not None or bool(of_device[call])] * len(found)
    return _with_lags(points, look.end, ints(work), ints(point), ints(told))


def _with_lags(points: ThreadPoints, ends: Ints, work: Ints, point: Ints, told: Ints) -> GpuWaits:
    wait = points.partner[point]
    begin, end = points.time[wait], points.time[point]
    apart = end - ends[work]
    latest = np.full(len(points), -(1 << 62))
    np.maximum.at(latest, point, ends[work])
    # Of several streams the one that ended last let the call return.
    bound = (ends[work] > begin) & (apart <= _SOON_NS)
    bound &= ends[work] == latest[point]
    after = int(np.median(apart[bound])) if bound.any() else _USUAL_RETURN_NS
    lag = np.where(bound, apart, np.minimum(after, apart))
    returns = points.at(RETURN)
    length = points.time[returns] - points.time[points.partner[returns]]
    is_bound = np.zeros(len(points), dtype=bool)
    is_bound[point[bound]] = True
    waited = is_bound[returns]
    free = length[~waited & (length < _SOON_NS)]
    usual = int(np.median(free)) if len(free) else _USUAL_COST_NS
    cost = np.zeros(len(points), dtype=np.int64)
    cost[points.partner[returns]] = np.where(waited, np.minimum(usual, length), length)
    return GpuWaits(work, point, ints(lag), np.full(len(lag), after), told, cost)


class _Work:
    """GPU work of the rank, looked at from calls, one after the other."""

    def __init__(self, timeline: Timeline, rows: Ints) -> None:
        gpu, launches = timeline.activity.gpu, timeline.launches
        self.end = ints(gpu.end[rows])
        launched, self.stream = launches.time[rows], ints(gpu.stream[rows])
        self.by_launch = np.argsort(launched, kind="stable")
        self.launched = ints(launched[self.by_launch])
        self.of_streams = list(by_stream(timeline, rows).values())
        track = launches.track[rows]
        self.of_tracks = {
            one: LaunchedWork(self.by_launch[track[self.by_launch] == one], launched)
            for one in present(track)
        }
        # Of all that is launched first, what ends last; of what ends later, looked for one by one.
        self.farthest = np.maximum.accumulate(self.end[self.by_launch])

    def last_of_streams(self, begin: int, end: int) -> list[int]:
        """The last work of each stream that was launched before `begin` and ended by `end`."""
        found = [one.last(begin) for one in self.of_streams]
        return [one for one in found if one is not None and self.end[one] <= end + _AFTER_NS]

    def of_stream(self, begin: int, end: int, track: int) -> list[int]:
        """The last work of the stream that a call of this thread most likely waited for."""
        last = self.last_of_streams(begin, end)
        if not last:
            return []
        closest = max(last, key=lambda one: int(self.end[one]))
        newest = self.of_tracks[track].last(begin) if track in self.of_tracks else None
        if newest is None:
            return [closest]
        own = [one for one in last if self.stream[one] == self.stream[newest]]
        waited = int(self.end[closest]) > begin
        if own and (int(self.end[own[0]]) > begin or not waited):
            return own
        return [closest]

    def of_event(self, begin: int, end: int) -> list[int]:
        """The work that ended last before a call returned."""
        count = int(np.searchsorted(self.launched, begin))
        if not count or self.farthest[count - 1] <= begin - _AFTER_NS:
            return []
        able = self.by_launch[:count]
        able = able[self.end[able] <= end + _AFTER_NS]
        if not len(able):
            return []
        last = able[self.end[able].argmax()]
        return [int(last)] if self.end[last] > begin - _AFTER_NS else []
