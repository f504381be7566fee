# SPDX-License-Identifier: Apache-2.0
"""One rank's activity and what it belongs to: device, launches, window, classes, steps."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.timeline.activity import (
    KERNEL,
    NONE,
    Activity,
    Calls,
    GpuWork,
    Ops,
)
from megatron.torch_trace.analysis.timeline.autograd import forward_operators
from megatron.torch_trace.analysis.timeline.breakdown import BusySets
from megatron.torch_trace.analysis.timeline.code_columns import present
from megatron.torch_trace.analysis.timeline.kernel_names import (
    COMMUNICATION,
    COMPUTE,
    MEMORY,
)
from megatron.torch_trace.analysis.timeline.launches import (
    Launches,
    find_clock_offset,
    match_launches,
)
from megatron.torch_trace.analysis.timeline.missing_links import is_unlinked, link
from megatron.torch_trace.analysis.timeline.nesting import Nesting
from megatron.torch_trace.analysis.timeline.span_names import microbatch_span, phase_of
from megatron.torch_trace.analysis.timeline.steps import Window, find_window
from megatron.torch_trace.columns.intervals import Intervals, Ints, ints
from megatron.torch_trace.format.communication_names import is_coalesced_range, is_communication
from megatron.torch_trace.format.integer_arrays import distinct
from megatron.torch_trace.gpu_record.clock import ClockOffset


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices with work.

    Args:
        analysed: the one with the most, None if there is none.
        others: the other ones.
        served_elsewhere: correlations of the work on the others, whose launches did not fail.
    """

    analysed: int | None
    others: tuple[int, ...]
    served_elsewhere: Ints


@dataclass
class Timeline:
    """Input of every analysis of one rank.

    Args:
        activity: the trace; `activity.gpu` holds only the analysed device.
        devices: which one that is.
        launches: for each row of `activity.gpu`.
        window: what is analysed.
        is_communication, is_memory, is_compute: classes of the rows of `activity.gpu`.
        clock_offset: of the GPU, if it is on another clock than the CPU.
    """

    activity: Activity
    devices: Devices
    launches: Launches
    window: Window
    is_communication: npt.NDArray[np.bool_]
    is_memory: npt.NDArray[np.bool_]
    is_compute: npt.NDArray[np.bool_]
    clock_offset: ClockOffset | None = None

    @cached_property
    def sets(self) -> BusySets:
        """Unions of each class in the window."""
        return BusySets(
            *(self.union(mask) for mask in (self.is_compute, self.is_communication, self.is_memory))
        )

    @cached_property
    def in_window(self) -> npt.NDArray[np.bool_]:
        """Rows of `activity.gpu` that run in the window, if only for a part."""
        gpu = self.activity.gpu
        inside: npt.NDArray[np.bool_] = gpu.end > self.window.start
        return inside & (gpu.start < self.window.end)

    @cached_property
    def clipped(self) -> Ints:
        """How long each row of `activity.gpu` runs within the window, ns."""
        gpu, window = self.activity.gpu, self.window
        length = np.minimum(gpu.end, window.end) - np.maximum(gpu.start, window.start)
        return ints(np.maximum(length, 0))

    @cached_property
    def step_of(self) -> Ints:
        """Step (position in `window.steps`) in which each row was launched; NONE before it."""
        return self.window.step_index(self.launches.time)

    @cached_property
    def operators(self) -> Nesting:
        """Operators of the CPU around calls of the runtime; answers are rows of `activity.ops`.

        Without record_param_comms, which is only torch's note of a collective, and with
        nccl:coalesced, which no operator encloses. Operators that call nothing, most of them, are
        left out: it may be asked for the begin of calls only.
        """
        ops = self.activity.ops
        notes = self.activity.named(ops, lambda name: name == "record_param_comms")
        coalesced = self.activity.named(ops, is_coalesced_range)
        wanted = (~ops.annotation & ~notes) | (ops.annotation & coalesced)
        return nesting_of(ops, _around(ops, wanted, self.activity.calls))

    @cached_property
    def launching_operator(self) -> Ints:
        """Row of `activity.ops`: the innermost operator that launched each row of gpu, or NONE."""
        found = self.operators.innermost(self.launches.track, self.launches.time)
        own = self.activity.gpu.op
        return ints(np.where((self.launches.call == NONE) & (own != NONE), own, found))

    @cached_property
    def forward_operators(self) -> Ints:
        """For each row of `activity.ops`, the row that made the autograd node it runs, or NONE."""
        return forward_operators(self.activity.ops, self.activity.names)

    @cached_property
    def exposed_communication(self) -> Ints:
        """How long each row of `activity.gpu`, if communication, runs with no compute beside it."""
        gpu, window = self.activity.gpu, self.window
        start, end = np.maximum(gpu.start, window.start), np.minimum(gpu.end, window.end)
        alone = self.clipped - self.sets.compute.covered(start, end)
        return ints(np.where(self.is_communication, alone, 0))

    @cached_property
    def phase_spans(self) -> Ints:
        """Rows of `activity.ops`: spans of phases on the training loop's thread."""
        activity, ops = self.activity, self.activity.ops
        mask = activity.named(ops, lambda name: phase_of(name) is not None) & ops.annotation
        track = self.window.track
        if track == NONE and mask.any():
            track = int(np.bincount(ops.track[mask]).argmax())
        return ints(np.flatnonzero(mask & (ops.track == track)))

    def begin_inside(self, rows: Ints) -> npt.NDArray[np.bool_]:
        """Which of these rows of `activity.ops` begin in the window."""
        ops = self.activity.ops
        return self.begins_inside(ops.start[rows], ops.end[rows])

    def begins_inside(self, start: Ints, end: Ints) -> npt.NDArray[np.bool_]:
        """Which ranges of the CPU begin in the window.

        Without steps the window begins with GPU work, launched in ranges that begin before it.
        """
        window = self.window
        begun = start >= window.start if window.steps else end > window.start
        inside: npt.NDArray[np.bool_] = begun & (start < window.end)
        return inside

    @cached_property
    def microbatch(self) -> Ints:
        """Row of `activity.ops`: the micro-batch that the training loop was in at each launch.

        Whichever thread launched: autograd's does while the loop waits in the backward span.
        """
        ops, rows = self.activity.ops, self._microbatch_spans
        if not len(rows):
            return np.full(len(self.activity.gpu), NONE, dtype=np.int64)
        spans = Nesting(ops.start[rows], ops.end[rows], np.zeros(len(rows), dtype=np.int64), rows)
        known = ints(np.where(self.launches.track != NONE, 0, NONE))
        return spans.innermost(known, self.launches.time)

    @property
    def has_microbatches(self) -> bool:
        """Whether the trace has spans of micro-batches."""
        return len(self._microbatch_spans) > 0

    @cached_property
    def _microbatch_spans(self) -> Ints:
        ops, rows = self.activity.ops, self.phase_spans
        mine = self.activity.named(ops, lambda name: microbatch_span(name) is not None)
        return rows[mine[rows]]

    def union(self, mask: npt.NDArray[np.bool_]) -> Intervals:
        """Union of the rows of `activity.gpu` that `mask` selects, clipped to the window."""
        gpu, window = self.activity.gpu, self.window
        return Intervals.of(
            np.maximum(gpu.start[mask], window.start), np.minimum(gpu.end[mask], window.end)
        )

    def class_of(self, row: int) -> str:
        """Class of a row of `activity.gpu`."""
        if self.is_communication[row]:
            return COMMUNICATION
        return MEMORY if self.is_memory[row] else COMPUTE


def nesting_of(ops: Ops, mask: npt.NDArray[np.bool_]) -> Nesting:
    """The nesting of some rows of `ops`; its answers are rows of all of `ops`."""
    rows = np.flatnonzero(mask)
    return Nesting(ops.start[rows], ops.end[rows], ops.track[rows], rows)


def _around(ops: Ops, wanted: npt.NDArray[np.bool_], calls: Calls) -> npt.NDArray[np.bool_]:
    """Which of the wanted rows of `ops` have the begin of a call in them, on the same track."""
    found = np.zeros(len(ops), dtype=bool)
    for track in present(calls.track):
        rows = np.flatnonzero(wanted & (ops.track == track))
        begins = np.append(calls.start[calls.track == track], np.iinfo(np.int64).max)
        first = begins[np.searchsorted(begins, ops.start[rows], side="left")]
        found[rows] = first < ops.end[rows]
    return found


def timeline_of(activity: Activity, *, workers: int = 1) -> Timeline | None:
    """Find all of these; None for a trace with neither steps nor GPU work nor launches of any.

    Args:
        activity: the trace.
        workers: processes to read it with once more, where its launches need to be looked for.

    Raises:
        MergedTraceError: the file holds several ranks.
    """
    if is_unlinked(activity):
        link(activity, workers)
    devices = _choose_device(activity)
    launches = match_launches(activity)
    offset = find_clock_offset(activity, launches, several_devices=bool(devices.others))
    window = find_window(activity, launches.time, one_clock=offset is None)
    if window is None:
        return None
    gpu = activity.gpu
    known = np.zeros(max(len(activity.names), 1), dtype=bool)
    for code in present(gpu.name[gpu.kind == KERNEL]):
        known[code] = is_communication(activity.names[code])
    kernel = gpu.kind == KERNEL
    communication = kernel & ((gpu.collective != NONE) | known[gpu.name])
    return Timeline(
        activity,
        devices,
        launches,
        window,
        is_communication=communication,
        is_memory=~kernel,
        is_compute=kernel & ~communication,
        clock_offset=offset,
    )


def _choose_device(activity: Activity) -> Devices:
    """Keep the device with the most work; a rank of Megatron has one."""
    gpu = activity.gpu
    found = distinct(gpu.device).tolist()
    if len(found) < 2:
        return Devices(found[0] if found else None, (), ints([]))
    work = {one: int((gpu.end - gpu.start)[gpu.device == one].sum()) for one in found}
    chosen = max(found, key=lambda one: work[one])
    keep = gpu.device == chosen
    elsewhere = ints(gpu.correlation[~keep])
    activity.gpu = GpuWork(**{f.name: ints(getattr(gpu, f.name)[keep]) for f in fields(gpu)})
    return Devices(chosen, tuple(one for one in found if one != chosen), elsewhere)
