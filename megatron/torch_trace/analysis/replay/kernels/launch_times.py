# SPDX-License-Identifier: Apache-2.0
"""When calls launch: at once, or, where the queue of the GPU is full, when there is room again.

A GPU takes about a thousand launches ahead. Where the CPU is further ahead, a call that launches
lasts until a piece of work has ended, as a synchronisation would: that is a wait, no work. So does
one that copies pageable memory (`blocking_copies`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.host.blocking_copies import blocking_copies
from megatron.torch_trace.analysis.replay.kernels.graph import Bools
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.integer_arrays import distinct

_LONG_NS = 50_000
"""Shorter calls have not waited."""
_USUAL_NS = 10_000
_QUEUE = 256
"""With less work launched and not begun no queue is full."""


@dataclass(frozen=True, slots=True)
class LaunchTimes:
    """One row for each row of `activity.calls`.

    Args:
        begin: when the call launches: its start; if it waited for room, shortly before its end; if
            it copies pageable memory, shortly before the copy.
        took: ns from then on until it has launched; what copies pageable memory returns later.
        waited: whether it waited before, for room or for its stream.
    """

    begin: Ints
    took: Ints
    waited: Bools


def launch_times(timeline: Timeline) -> LaunchTimes:
    """Find the calls that waited for room in the queue."""
    activity, launches = timeline.activity, timeline.launches
    calls, gpu = activity.calls, activity.gpu
    waited = np.zeros(len(calls), dtype=bool)
    begin = ints(calls.start).copy()
    launching = distinct(launches.call[launches.call >= 0])
    took = (calls.end - calls.start)[launching]
    if not len(launching):
        return LaunchTimes(begin, ints(calls.end - begin), waited)
    # Most calls may have waited, the shortest have not.
    usual = min(int(np.sort(took)[len(took) // 10]), _USUAL_NS)
    long = launching[took > _LONG_NS]
    launched = np.sort(launches.time[launches.time >= 0], kind="stable")
    begun = np.sort(gpu.start[launches.time >= 0], kind="stable")
    # Launched before the call began, less what had begun by its end.
    ahead = np.searchsorted(launched, calls.start[long])
    ahead -= np.searchsorted(begun, calls.end[long], side="right")
    full = long[ahead >= _QUEUE]
    waited[full] = True
    begin[full] = calls.end[full] - usual
    copies, copied = blocking_copies(timeline)
    waited[copies] = True
    begin[copies] = np.maximum(copied - usual, calls.start[copies])
    took = calls.end - begin
    took[copies] = np.minimum(took[copies], usual)
    return LaunchTimes(begin, ints(took), waited)
