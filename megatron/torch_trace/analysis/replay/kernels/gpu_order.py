# SPDX-License-Identifier: Apache-2.0
"""GPU work of one rank: what each piece has to wait for on its own GPU, and for how long after.

    launch of K ---lag---> K begins          at least as long as a launch takes here
    end of the one before ---gap---> K       stream order
    end of work on another stream ---> K     the stream was told to wait (cudaStreamWaitEvent)
    another stream's work ---> K             contention: the GPU was full until then

The file does not tell which stream waits for which event, nor what fills a GPU. Streams that a
thread changes between, with a call that makes a stream wait in between, wait for each other. And a
start that neither the launch nor the stream explains, at the end of other work, waited for that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.replay.kernels.graph import CONTENTION, STREAM_WAIT, Bools
from megatron.torch_trace.analysis.replay.kernels.launch_times import LaunchTimes
from megatron.torch_trace.analysis.replay.kernels.recorded_waits import RecordedWaits
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.code_columns import present
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.categories import makes_stream_wait

SOON_NS = 20_000
"""A start so long after what allowed it needs no other explanation."""
_TAIL_NS = 60_000
"""So long before work of another stream ends, its last blocks leave room for the next one."""
_LONG_LAUNCH_NS = 50_000
"""A call that launches and takes longer does not keep the work itself waiting."""
_USUAL_LATENCY_NS = 3_000
_USUAL_GAP_NS = 1_500


@dataclass(frozen=True, slots=True)
class GpuOrder:
    """Dependencies of GPU work within one rank; positions are in `rows`.

    Args:
        rows: rows of `activity.gpu`, by start.
        launch_lag: from the call that launched each to its start, at least; ns.
        usual_lag, usual_gap: the same of `launch_lag` and `gap`, as they usually are here.
        before: position of the one before it on its stream, or NONE.
        gap: from the end of that one, at least; ns.
        source, target, lag, kind: other dependencies, from the end of `source`; kinds of edges.
        told: the trace tells what streams wait for; else it is inferred.
    """

    rows: Ints
    launch_lag: Ints
    usual_lag: Ints
    before: Ints
    gap: Ints
    usual_gap: Ints
    source: Ints
    target: Ints
    lag: Ints
    kind: Ints
    told: bool


def gpu_order(timeline: Timeline, rows: Ints, times: LaunchTimes) -> GpuOrder:
    """Find them.

    Args:
        timeline: of the rank.
        rows: rows of `activity.gpu`, by start; those whose launch is unknown are NONE there.
        times: when its calls launch.
    """
    gpu = timeline.activity.gpu
    start, end, stream = ints(gpu.start[rows]), ints(gpu.end[rows]), ints(gpu.stream[rows])
    launch, took = _launches(timeline, rows, times)
    before = _before(stream)
    behind = np.where(before == NONE, _never(start), end[before])
    recorded = RecordedWaits(timeline, rows)
    told = len(recorded) > 0
    source, target = recorded.of_streams() if told else _stream_waits(timeline, rows)
    known = end[source] <= start[target] + SOON_NS
    source, target = source[known], target[known]
    by_other = _never(start)
    np.maximum.at(by_other, target, end[source] + _USUAL_GAP_NS)
    usual_lag, usual_gap = _usual(start, launch, took, behind, by_other)
    lag, gap = np.minimum(usual_lag, start - launch), np.minimum(usual_gap, start - behind)
    by_launch, by_stream = launch + lag, behind + gap
    ready = np.maximum(np.maximum(by_launch, by_stream), by_other)
    # What explains a start explains it to the nanosecond; the others bound it from below.
    explained = start - ready <= SOON_NS
    launches = explained & (by_launch == ready)
    follows = explained & ~launches & (by_stream == ready)
    waits = (explained & ~launches & ~follows)[target]
    waits &= end[source] + _USUAL_GAP_NS == ready[target]
    apart = start[target] - end[source]
    lags = np.where(waits, apart, np.minimum(apart, _USUAL_GAP_NS))
    more, which = _contention(start, end, stream, np.flatnonzero(~explained))
    return GpuOrder(
        rows,
        ints(np.where(launches, start - launch, lag)),
        usual_lag,
        before,
        ints(np.where(follows, start - behind, gap)),
        usual_gap,
        np.concatenate((source, more)),
        np.concatenate((target, which)),
        ints(np.concatenate((lags, start[which] - end[more]))),
        np.repeat((STREAM_WAIT, CONTENTION), (len(source), len(more))),
        told,
    )


def _never(like: Ints) -> Ints:
    return np.full(len(like), -(1 << 60), dtype=np.int64)


def _launches(timeline: Timeline, rows: Ints, times: LaunchTimes) -> tuple[Ints, Ints]:
    """When each was launched, and how long that call took; a launch that is unknown was at once."""
    call, time = timeline.launches.call[rows], timeline.launches.time[rows]
    start = timeline.activity.gpu.start[rows]
    if not len(timeline.activity.calls):
        return np.where(time == NONE, start, time), np.zeros(len(rows), dtype=np.int64)
    took = np.where(call == NONE, 0, times.took[call])
    time = np.where(call == NONE, time, times.begin[call])
    return np.where(time == NONE, start, time), ints(took)


def _before(stream: Ints) -> Ints:
    found = np.full(len(stream), NONE, dtype=np.int64)
    order = np.argsort(stream, kind="stable")
    same = stream[order][1:] == stream[order][:-1]
    found[order[1:][same]] = order[:-1][same]
    return found


def _usual(
    start: Ints, launch: Ints, took: Ints, behind: Ints, by_other: Ints
) -> tuple[Ints, Ints]:
    """How long after its launch, and after the one before it, each starts at least."""
    free = (behind < launch) & (by_other < launch)
    latency = (start - launch - took)[free]
    usual = int(np.median(latency)) if len(latency) else _USUAL_LATENCY_NS
    queued = (launch + took + usual < behind) & (behind <= start) & (by_other < behind)
    gaps = (start - behind)[queued]
    gap = int(np.median(gaps)) if len(gaps) else _USUAL_GAP_NS
    return ints(np.minimum(took, _LONG_LAUNCH_NS) + usual), np.full(len(start), gap)


def _stream_waits(timeline: Timeline, rows: Ints) -> tuple[Ints, Ints]:
    """Where a thread goes on to launch on another stream, after a call that makes a stream wait.

    The first work on the new stream waits for the last on the old one, as far as it was launched
    before that call.
    """
    activity, launches = timeline.activity, timeline.launches
    calls, gpu = activity.calls, activity.gpu
    waiting = np.flatnonzero(activity.named(calls, makes_stream_wait))
    sources, targets = [ints([])], [ints([])]
    for track in present(calls.track[waiting]):
        mine = np.flatnonzero(launches.track[rows] == track)
        mine = mine[np.argsort(launches.time[rows[mine]], kind="stable")]
        time, stream = launches.time[rows[mine]], gpu.stream[rows[mine]]
        told = calls.start[waiting[calls.track[waiting] == track]]
        waits = np.searchsorted(told, time[1:]) > np.searchsorted(told, time[:-1])
        changes = np.flatnonzero((stream[1:] != stream[:-1]) & waits)
        sources.append(mine[changes])
        targets.append(mine[changes + 1])
    return np.concatenate(sources), np.concatenate(targets)


def _contention(start: Ints, end: Ints, stream: Ints, late: Ints) -> tuple[Ints, Ints]:
    """Of starts that nothing explains: work of another stream that ended just then."""
    order = np.argsort(end, kind="stable")
    ends = end[order]
    low = np.searchsorted(ends, start[late] - SOON_NS)
    high = np.searchsorted(ends, start[late] + _TAIL_NS, side="right")
    sources, targets = [], []
    for one, first, behind in zip(late.tolist(), low.tolist(), high.tolist(), strict=True):
        near = order[first:behind]
        near = near[(stream[near] != stream[one]) & (start[near] < start[one])]
        if len(near):
            sources.append(int(near[np.abs(end[near] - start[one]).argmin()]))
            targets.append(one)
    return ints(sources), ints(targets)


def selected(timeline: Timeline, until: int) -> tuple[Ints, Bools]:
    """Rows of `activity.gpu` that belong to the window, and which were launched in it."""
    gpu, window = timeline.activity.gpu, timeline.window
    time = timeline.launches.time
    within = (time >= window.start) & (time < until)
    early = (time < window.start) & (gpu.end > window.start) & (gpu.start < until)
    rows = np.flatnonzero(within | early)
    return rows, within[rows]
