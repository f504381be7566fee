# SPDX-License-Identifier: Apache-2.0
"""Why the GPU is idle: what the work that ends each gap had waited for.

Until the CPU launches this work the GPU waits for the CPU; after that the work waits for something
else: its launch is on the way, or it must wait for an event.

    CPU            data loader  [-----)      launch k2 [)
    GPU      k1 ####                                        #### k2
    idle            [---)[-----)[----------------------)[--)
    because          cpu   data           cpu            gpu

A launch call that lasts longer than a launch takes is the CPU's time too, but for its last moments.

A synchronisation has the GPU run out of work, so the gap is its own until it returns and one more
launch could have been made. What the CPU does then it does for other reasons:

    CPU      synchronise [--------)   Python [---------------)  launch k2 [)
    GPU      k1 ############                                                #### k2
    idle                    [-------)[------------------------------------)
    because                    sync      cpu
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.host.garbage_collections import collecting, collection_rows
from megatron.torch_trace.analysis.host.idle_holders import IdleHolder, idle_holders
from megatron.torch_trace.analysis.host.long_gaps import LongGaps, long_gaps
from megatron.torch_trace.analysis.host.not_started import NotStarted, not_started
from megatron.torch_trace.analysis.host.threads import Threads, threads_of
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Intervals, Ints, ints
from megatron.torch_trace.format.categories import is_kernel_launch
from megatron.torch_trace.format.integer_arrays import distinct

_MOST_LAUNCH_NS = 20_000
"""A launch call that lasts longer does something other than launch; 4 to 15 us are usual."""


@dataclass(frozen=True, slots=True)
class IdleCauses:
    """Idle time of the GPU in the window, split without remainder.

    Args:
        data_ns: the CPU waited for the data loader, and had nothing launched.
        sync_ns: the CPU waited for the GPU (cudaStreamSynchronize, ...) until nothing was left to
            run, and had to launch anew: until the wait returned, plus one launch.
        cpu_ns: the CPU had not launched the next work yet for other reasons, or its launch call
            lasted longer than one launch.
        gpu_ns: the next work was launched already: its launch was on the way, or it waited for an
            event of another stream, another GPU or the host, or for another process.
        unknown_ns: the launch of the next work is not in the trace.
    """

    data_ns: int
    sync_ns: int
    cpu_ns: int
    gpu_ns: int
    unknown_ns: int

    @property
    def total_ns(self) -> int:
        return self.data_ns + self.sync_ns + self.cpu_ns + self.gpu_ns + self.unknown_ns


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle time of the GPU, why, and who.

    Args:
        causes: the split.
        holders: what the CPU did in `causes.cpu_ns`, the longest first: Python functions, where
            the trace has stacks, and calls of the runtime. They overlap.
        long_gaps: the long pieces of `causes.cpu_ns`; None if there are none.
        not_started: more about `causes.gpu_ns`; None if that is nothing.
        collecting: when a thread that was to launch the next work was in a collection of garbage,
            whatever else it was in.
    """

    causes: IdleCauses
    holders: tuple[IdleHolder, ...]
    long_gaps: LongGaps | None
    not_started: NotStarted | None
    collecting: Intervals


def idle_of(timeline: Timeline, gaps: Intervals, loader: Intervals, syncing: Ints) -> Idle:
    """Split the gaps by cause, in ns that add up to them; all unknown where clocks differ.

    Args:
        timeline: of one rank.
        gaps: when the GPU is idle.
        loader: when the training loop is in the data loader.
        syncing: rows of `activity.calls` that wait for the GPU.

    Source: docs/computed.md, "Why the GPU was idle".
    """
    ends = _Ends.of(timeline, gaps)
    if ends is None or timeline.clock_offset is not None:
        return Idle(IdleCauses(0, 0, 0, 0, gaps.total), (), None, None, Intervals.empty())
    data = sync = 0
    held: list[tuple[Threads, Intervals, Intervals]] = []
    stopped, collections = Intervals.empty(), collection_rows(timeline)
    one_launch = _one_launch(timeline)
    for group in threads_of(timeline):
        mine = group.holds(ends.track)
        waits = Intervals.of(ends.starts[mine], ends.launched[mine])
        rest = waits.minus(loader)
        alone = rest.minus(_synchronising(timeline, group, syncing, one_launch))
        data += waits.total - rest.total
        sync += rest.total - alone.total
        stops = collecting(timeline, collections, group)
        stopped = stopped.union(waits.intersect(stops))
        held.append((group, alone, stops))
    behind = ends.ends - ends.launched
    return Idle(
        IdleCauses(
            data_ns=data,
            sync_ns=sync,
            cpu_ns=sum(alone.total for _, alone, _ in held),
            gpu_ns=int(behind.sum()),
            unknown_ns=gaps.total - int((ends.ends - ends.starts).sum()),
        ),
        idle_holders(timeline, held),
        long_gaps(timeline, held),
        not_started(timeline, ends.row, ends.launched, ends.ends),
        stopped,
    )


@dataclass(frozen=True, slots=True)
class _Ends:
    """The gaps of which is known when the work that ends them was launched.

    Args:
        starts, ends: of the gaps.
        launched: when it was launched, within the gap.
        row: the work, a row of `activity.gpu`; NONE for the gap at the window's end.
        track: of the launching call.
    """

    starts: Ints
    ends: Ints
    launched: Ints
    row: Ints
    track: Ints

    @classmethod
    def of(cls, timeline: Timeline, gaps: Intervals) -> _Ends | None:
        gpu, launches, window = timeline.activity.gpu, timeline.launches, timeline.window
        if not len(gaps) or not len(gpu):
            return None
        # The work that ends each gap starts exactly where the gap ends; of several the one that
        # was launched first.
        order = np.lexsort((launches.time, gpu.start))
        at = np.searchsorted(gpu.start[order], gaps.ends, side="left")
        row = ints(order[np.minimum(at, len(order) - 1)])
        last = gaps.ends >= window.end
        row = ints(np.where(last, NONE, row))
        call = np.where(last, NONE, launches.call[row])
        launched = np.where(last, gaps.ends, _launched(timeline, row, call))
        launched = np.clip(launched, gaps.starts, gaps.ends)
        track = np.where(last, window.track, launches.track[row])
        known = (call != NONE) | (last & (track != NONE) & _nothing_pending(timeline, gaps))
        return cls(
            *(ints(part[known]) for part in (gaps.starts, gaps.ends, launched, row, track)),
        )


def _launched(timeline: Timeline, row: Ints, call: Ints) -> Ints:
    """When work was on its way: with the call, or where that lasts too long shortly before its end.

    The work may start before its call returns; then the call lasted as long as it mattered.
    """
    begun, calls = timeline.launches.time[row], timeline.activity.calls
    if not len(calls):
        return ints(begun)
    returned = np.minimum(calls.end[call], timeline.activity.gpu.start[row])
    return ints(np.maximum(begun, returned - _MOST_LAUNCH_NS))


def _nothing_pending(timeline: Timeline, gaps: Intervals) -> bool:
    """Whether the CPU launched nothing in the last gap: all that it had launched has run."""
    calls = timeline.activity.calls
    if not (calls.correlation > 0).any():
        # No launch is known at all.
        return False
    late = (calls.start >= gaps.starts[-1]) & (calls.start < gaps.ends[-1])
    late &= calls.correlation > 0
    return not (late & timeline.activity.named(calls, is_kernel_launch)).any()


def _synchronising(timeline: Timeline, group: Threads, syncing: Ints, one_launch: int) -> Intervals:
    """When threads of this group waited for the GPU, each time with one more launch."""
    calls = timeline.activity.calls
    rows = syncing[group.holds(ints(calls.track[syncing]), with_family=True)]
    return Intervals.of(calls.start[rows], calls.end[rows] + one_launch)


def _one_launch(timeline: Timeline) -> int:
    """How long a launch call lasts in this trace, in ns."""
    calls, call = timeline.activity.calls, timeline.launches.call
    rows = distinct(call[call != NONE])
    if not len(rows):
        return 0
    return min(int(np.median(calls.end[rows] - calls.start[rows])), _MOST_LAUNCH_NS)
