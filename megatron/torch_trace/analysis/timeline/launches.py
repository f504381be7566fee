# SPDX-License-Identifier: Apache-2.0
"""Which call of the CPU put which work on the GPU, and how long it waited there.

A launch is known by its correlation, never by its name: cudaGraphLaunch puts many kernels on the
GPU under one correlation, and new launch functions appear every year.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.timeline.activity import NONE, Activity
from megatron.torch_trace.analysis.timeline.steps import Window
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.categories import (
    awaits_device,
    begins_capture,
    ends_capture,
    is_kernel_launch,
)
from megatron.torch_trace.gpu_record.captures import Captures
from megatron.torch_trace.gpu_record.clock import ClockOffset, apart_from_cpu, find_offset


@dataclass(frozen=True, slots=True)
class Launches:
    """For each row of `Activity.gpu`, by whom and when it was launched.

    Args:
        call: row of `Activity.calls`, NONE if the launch is not in the trace.
        time: start of that call in ns, of the operator where only that is known, or NONE.
        track: track of that call or operator, NONE if unknown.
    """

    call: Ints
    time: Ints
    track: Ints


@dataclass(frozen=True, slots=True)
class LaunchStatistics:
    """How the CPU feeds the GPU, within the window.

    Args:
        launches: calls that put work on the GPU, or should have.
        kernel_launches: those of them that launch kernels or graphs; without_kernel: of these,
            those after which nothing ran.
        captured: launches into a graph that was being captured, which run nothing yet; they are in
            none of the other numbers.
        captured_steps: numbers of the steps in which they were.
        work_without_launch: GPU work whose launch is not in the trace (before it began).
        work_without_link: GPU work of which nothing tells the launch, before the trace or in it.
        delay_median_ns, delay_p90_ns, delay_max_ns: from the start of the call to the start of the
            work; negative ones (clock skew between CPU and GPU) count as 0. None without launches,
            and where the GPU is on another clock.
        negative_delays: how many were negative; negative_delay_ns: the one furthest from zero.
        clock_offset_ns: by how much the GPU's clock is off at least; None if it is not.
        depth_mean, depth_max: work launched and not yet finished; the mean is over time.
        calls_ns: time inside launch calls on all threads.
    """

    launches: int
    kernel_launches: int
    without_kernel: int
    captured: int
    captured_steps: tuple[int, ...]
    work_without_launch: int
    work_without_link: int
    delay_median_ns: int | None
    delay_p90_ns: int | None
    delay_max_ns: int | None
    negative_delays: int
    negative_delay_ns: int
    clock_offset_ns: int | None
    depth_mean: float | None
    depth_max: int | None
    calls_ns: int


def match_launches(activity: Activity) -> Launches:
    """Join GPU work with calls on the correlation; of several calls the first one."""
    calls, gpu = activity.calls, activity.gpu
    rows = np.flatnonzero(calls.correlation > 0)
    ids, first = np.unique(calls.correlation[rows], return_index=True)
    call = np.full(len(gpu), NONE, dtype=np.int64)
    if len(ids) and len(gpu):
        at = np.minimum(np.searchsorted(ids, gpu.correlation), len(ids) - 1)
        known = ids[at] == gpu.correlation
        call[known] = rows[first[at[known]]]
    known = call != NONE
    time = np.full(len(gpu), NONE, dtype=np.int64)
    track = np.full(len(gpu), NONE, dtype=np.int64)
    time[known] = calls.start[call[known]]
    track[known] = calls.track[call[known]]
    by_op = ~known & (gpu.op != NONE)
    time[by_op] = activity.ops.start[gpu.op[by_op]]
    track[by_op] = activity.ops.track[gpu.op[by_op]]
    return Launches(call, time, track)


def without_link(activity: Activity, launches: Launches) -> npt.NDArray[np.bool_]:
    """Rows of `activity.gpu` of which nothing tells the launch: no id, or nothing that has one."""
    unknown: npt.NDArray[np.bool_] = launches.time == NONE
    if not (activity.calls.correlation > 0).any():
        return unknown
    return unknown & (activity.gpu.correlation <= 0)


def find_clock_offset(
    activity: Activity, launches: Launches, *, several_devices: bool
) -> ClockOffset | None:
    """Whether the rows of `activity.gpu` are on another clock than the CPU's."""
    gpu, calls = activity.gpu, activity.calls
    rows = np.flatnonzero(launches.time != NONE)
    waits = np.flatnonzero(activity.named(calls, awaits_device))
    if several_devices:
        waits = waits[:0]
    ends = [int(table.end.max()) for table in (calls, activity.ops) if len(table)]
    apart = apart_from_cpu(gpu.start, gpu.end, launches.time[rows], max(ends, default=None))
    return find_offset(
        launches.time[rows],
        gpu.start[rows],
        gpu.end[rows],
        gpu.track[rows],
        (calls.start[waits], calls.end[waits]),
        apart,
    )


def find_captures(activity: Activity) -> Captures:
    """When graphs were being captured."""
    calls = activity.calls
    marks = [activity.named(calls, wanted) for wanted in (begins_capture, ends_capture)]
    return Captures.of(*((calls.start[mask], ints(calls.track[mask])) for mask in marks))


def launch_statistics(
    activity: Activity,
    launches: Launches,
    window: Window,
    served_elsewhere: Ints,
    offset: ClockOffset | None = None,
) -> LaunchStatistics:
    """Statistics over the launches that began in the window and the work that ran in it.

    Args:
        activity, launches, window: of one rank.
        served_elsewhere: correlations of launches whose work ran on another device.
        offset: of the GPU's clock, if it is another.
    """
    calls, gpu = activity.calls, activity.gpu
    cpu_end = max((step.cpu_end for step in window.steps), default=window.end)
    inside = (calls.start >= window.start) & (calls.start < cpu_end)
    served = np.zeros(len(calls), dtype=bool)
    if len(served_elsewhere):
        served = np.isin(calls.correlation, served_elsewhere)
    served[launches.call[launches.call != NONE]] = True
    kernels = activity.named(calls, is_kernel_launch) & (calls.correlation > 0) & inside
    into_graph = kernels & ~served & find_captures(activity).hold(calls.start)
    kernels &= ~into_graph
    launching = kernels | (served & inside)
    steps = window.step_index(calls.start[into_graph])

    running = (gpu.end > window.start) & (gpu.start < window.end)
    if offset is not None:
        # On another clock the window means nothing to the GPU.
        running[:] = True
    unknown = launches.time == NONE
    unlinked = without_link(activity, launches)
    known = running & (launches.call != NONE)
    delay = gpu.start[known] - launches.time[known]
    depth_mean, depth_max = None, None
    waited = ints([])
    if offset is None:
        depth_mean, depth_max = _depth(launches.time[known], gpu.end[known], window)
        waited = np.sort(np.maximum(delay, 0))

    def quantile(share: float) -> int | None:
        return int(waited[min(len(waited) - 1, int(share * len(waited)))]) if len(waited) else None

    return LaunchStatistics(
        launches=int(launching.sum()),
        kernel_launches=int(kernels.sum()),
        without_kernel=int((kernels & ~served).sum()),
        captured=int(into_graph.sum()),
        captured_steps=tuple(
            sorted({window.steps[step].number for step in steps.tolist() if step >= 0})
        ),
        work_without_launch=int((running & unknown & ~unlinked).sum()),
        work_without_link=int((running & unlinked).sum()),
        delay_median_ns=quantile(0.5),
        delay_p90_ns=quantile(0.9),
        delay_max_ns=quantile(1.0),
        negative_delays=int((delay < 0).sum()),
        negative_delay_ns=int(min(delay.min(initial=0), 0)),
        clock_offset_ns=None if offset is None else offset.offset_ns,
        depth_mean=depth_mean,
        depth_max=depth_max,
        calls_ns=int((calls.end[launching] - calls.start[launching]).sum()),
    )


def _depth(launched: Ints, end: Ints, window: Window) -> tuple[float | None, int | None]:
    """Mean over time, and maximum, of how much work is launched and not finished."""
    if not len(launched) or not window.length:
        return None, None
    times = np.concatenate((np.clip(launched, window.start, window.end), end))
    change = np.concatenate((np.ones(len(launched)), -np.ones(len(end)))).astype(np.int64)
    # Of equal times the ends first: work that ends as the next is launched does not queue with it.
    order = np.lexsort((change, times))
    depth = np.cumsum(change[order])
    at = np.clip(times[order], window.start, window.end)
    lengths = np.diff(np.append(at, window.end))
    return float((depth * lengths).sum()) / window.length, int(depth.max())
