# SPDX-License-Identifier: Apache-2.0
"""Work that is launched while the GPU is idle, and does not start: on its way, or held up."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.code_columns import present
from megatron.torch_trace.analysis.timeline.kernel_names import short_name
from megatron.torch_trace.analysis.timeline.moment import Moment, longest
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.integer_arrays import distinct

_ON_ITS_WAY_NS = 50_000
"""A launch reaches an idle GPU within 5 to 20 us; one in ten takes twice as long."""
_WAIT_EVENT = "streamwaitevent"


@dataclass(frozen=True, slots=True)
class NotStarted:
    """Idle time between the return of a launch call and the start of its work.

    Args:
        pieces: gaps of the GPU that end so.
        time_ns, median_ns: their time, and that of one.
        held_ns: the time of those of 50 us and more: a launch does not travel so long.
        held_by_event_ns: of these, where the launching thread had its stream wait for an event
            right before the launch.
        longest: the longest of them; work: what it waited to start.
    """

    pieces: int
    time_ns: int
    median_ns: int
    held_ns: int
    held_by_event_ns: int
    work: str
    longest: Moment | None = field(default=None, compare=False)


def not_started(timeline: Timeline, row: Ints, launched: Ints, started: Ints) -> NotStarted | None:
    """Sum up the gaps that end with work which was launched already; None if there are none.

    Args:
        row: the work, NONE for a gap that ends with none.
        launched: when its launch call returned; started: when it started.
    """
    late = (row != NONE) & (started > launched)
    if not late.any():
        return None
    row, launched, started = row[late], launched[late], started[late]
    time = started - launched
    held = time >= _ON_ITS_WAY_NS
    by_event = held & _after_event(timeline, row)
    gpu, names = timeline.activity.gpu, timeline.activity.names
    return NotStarted(
        pieces=len(row),
        time_ns=int(time.sum()),
        median_ns=int(np.median(time)),
        held_ns=int(time[held].sum()),
        held_by_event_ns=int(time[by_event].sum()),
        work=short_name(names[int(gpu.name[row[int(time.argmax())]])]),
        longest=longest(launched, started),
    )


def _after_event(timeline: Timeline, row: Ints) -> npt.NDArray[np.bool_]:
    """Which work was launched right after its thread had a stream wait for an event."""
    calls, launches = timeline.activity.calls, timeline.launches
    waits = timeline.activity.named(calls, lambda name: _WAIT_EVENT in name.lower())
    found = np.zeros(len(row), dtype=bool)
    launching = distinct(launches.call[launches.call != NONE])
    for track in present(ints(calls.track[waits])):
        mine = np.flatnonzero(launches.track[row] == track)
        at = launches.time[row[mine]]
        own = launching[calls.track[launching] == track]
        found[mine] = _last_before(ints(calls.start[waits & (calls.track == track)]), at) > (
            _last_before(ints(calls.start[own]), at)
        )
    return found


def _last_before(times: Ints, at: Ints) -> Ints:
    """The last of these ascending times before each of `at`; a time before all where is none."""
    index = np.searchsorted(times, at, side="left") - 1
    never = np.iinfo(np.int64).min
    return (
        ints(np.where(index >= 0, times[index], never))
        if len(times)
        else np.full(len(at), never, dtype=np.int64)
    )
