# SPDX-License-Identifier: Apache-2.0
"""Time of the CPU, for a recording without a GPU: what of it operators and modules took.

    ProfilerStep#3  [--------------------------------)
    data loader      [---)
    operators              [------)  [-----------)           of all threads, as one
    window           data  operators     operators  other    they add up to it exactly

An operator's own time is what no operator inside it takes, so own times of one thread never count
twice. Threads run beside each other: the sum over them may be longer than the window.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.host.data_loader import loader_intervals
from megatron.torch_trace.analysis.modules.ranges import ModuleRanges, find_ranges
from megatron.torch_trace.analysis.timeline.activity import Rows
from megatron.torch_trace.analysis.timeline.code_columns import present
from megatron.torch_trace.analysis.timeline.moment import Moment, longest
from megatron.torch_trace.analysis.timeline.span_names import PASSES
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Intervals, Ints, ints


@dataclass(frozen=True, slots=True)
class CpuSplit:
    """A length of time, split without remainder.

    Args:
        step: number of the step; None for the window.
        length_ns: the sum of the others.
        operators_ns: some thread was in an operator of torch, and the loop not in the data loader.
        data_ns: the loop was in the data loader.
        other_ns: neither: Python, waiting, other programs' turns at the cores.
    """

    step: int | None
    length_ns: int
    operators_ns: int
    data_ns: int
    other_ns: int


@dataclass(frozen=True, slots=True)
class CpuOperatorRow:
    """An operator of torch, over all threads.

    Args:
        operator: its name.
        calls: that begin in the window.
        self_ns: in it and in no operator inside it, cut to the window.
        time_ns: in it, whatever it calls: the union of its calls, cut to the window.
        share: self_ns / own time of all operators.
        longest: the longest call.
    """

    operator: str
    calls: int
    self_ns: int
    time_ns: int
    share: float
    longest: Moment | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class CpuModuleRow:
    """A module. Times are ns of its threads, modules below it included, cut to the window.

    Args:
        module: dotted path; type: its class.
        calls: of the forward pass that begin in the window.
        time_ns, recompute_time_ns, backward_time_ns: by pass.
        total_ns: of all three.
        self_ns: of that, in no module below it.
        share: total_ns / all time in modules.
        longest: the longest span, of whichever pass.
    """

    module: str
    type: str
    calls: int
    time_ns: int
    recompute_time_ns: int
    backward_time_ns: int
    total_ns: int
    self_ns: int
    share: float
    longest: Moment | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class CpuTime:
    """All of it: the window, its steps, operators by own time, modules by path."""

    window: CpuSplit
    steps: tuple[CpuSplit, ...]
    operators: tuple[CpuOperatorRow, ...]
    modules: tuple[CpuModuleRow, ...]


def cpu_time(timeline: Timeline) -> CpuTime:
    """What a recording without a GPU tells: the parts of a window in ns, which add up to it.

    Source: docs/computed.md, "Time of the CPU".
    """
    ops, window = timeline.activity.ops, timeline.window
    mine = np.flatnonzero(~ops.annotation & (ops.end > window.start) & (ops.start < window.end))
    inside = _clipped(ops, mine, window.start, window.end)
    operators = Intervals.of(inside.start, inside.end)
    data = loader_intervals(timeline)
    bounds = [(step.number, step.start, step.end) for step in window.steps]
    ranges = find_ranges(timeline)
    return CpuTime(
        window=_split(operators, data, None, window.start, window.end),
        steps=tuple(_split(operators, data, *one) for one in bounds),
        operators=_operators(timeline, inside),
        modules=() if ranges is None else _modules(timeline, ranges),
    )


def _clipped(rows: Rows, chosen: Ints, start: int, end: int) -> Rows:
    return Rows(
        np.maximum(rows.start[chosen], start),
        np.minimum(rows.end[chosen], end),
        rows.name[chosen],
        rows.track[chosen],
    )


def _split(
    operators: Intervals, data: Intervals, step: int | None, start: int, end: int
) -> CpuSplit:
    loading = data.clip(start, end)
    working = operators.clip(start, end).minus(loading)
    other = end - start - loading.total - working.total
    return CpuSplit(step, end - start, working.total, loading.total, other)


def own_times(rows: Rows) -> Ints:
    """How long each row is the innermost one of its track, ns.

    Between two begins or ends the innermost row is the last to have begun at the depth reached.

    Args:
        rows: sorted by start, of equal starts the longer first.
    """
    own = np.zeros(len(rows), dtype=np.int64)
    for track in present(rows.track):
        here = np.flatnonzero((rows.track == track) & (rows.end > rows.start))
        count = len(here)
        times = np.concatenate([rows.end[here], rows.start[here]])
        begins = np.concatenate([np.zeros(count, bool), np.ones(count, bool)])
        row_of = np.concatenate([here, here])
        # At one time what ends comes before what begins; the order of begins is kept.
        order = np.lexsort((begins, times))
        times, begins, row_of = times[order], begins[order], row_of[order]
        depth = np.cumsum(np.where(begins, 1, -1))
        begun = np.flatnonzero(begins)
        stride = 2 * count + 1
        key = depth[begun] * stride + begun
        by_key = np.argsort(key, kind="stable")
        open_ = np.flatnonzero(depth[:-1] > 0)
        at = np.searchsorted(key[by_key], depth[open_] * stride + open_, side="right") - 1
        innermost = row_of[begun[by_key[at]]]
        np.add.at(own, innermost, np.diff(times)[open_])
    return own


def _operators(timeline: Timeline, inside: Rows) -> tuple[CpuOperatorRow, ...]:
    names, window = timeline.activity.names, timeline.window
    own = own_times(inside)
    whole = int(own.sum()) or 1
    order = np.argsort(inside.name, kind="stable")
    codes, first = np.unique(inside.name[order], return_index=True)
    found = []
    for code, rows in zip(codes.tolist(), np.split(order, first[1:]), strict=False):
        mine = int(own[rows].sum())
        found.append(
            CpuOperatorRow(
                operator=names[code],
                calls=int((inside.start[rows] >= window.start).sum()),
                self_ns=mine,
                time_ns=Intervals.of(inside.start[rows], inside.end[rows]).total,
                share=mine / whole,
                longest=longest(inside.start[rows], inside.end[rows]),
            )
        )
    return tuple(sorted(found, key=lambda row: (-row.self_ns, row.operator)))


def _modules(timeline: Timeline, ranges: ModuleRanges) -> tuple[CpuModuleRow, ...]:
    window, rows = timeline.window, ranges.rows
    kept = np.flatnonzero((rows.end > window.start) & (rows.start < window.end))
    inside = _clipped(rows, kept, window.start, window.end)
    module, direction = ranges.module[kept], ranges.direction[kept]
    own = np.zeros((len(ranges.paths), len(PASSES)), dtype=np.int64)
    np.add.at(own, (module, direction), own_times(inside))
    total = own.copy()
    for position, above in enumerate(ranges.above):
        for holder in above:
            total[holder] += own[position]
    begun = timeline.begins_inside(rows.start[kept], rows.end[kept])
    calls = np.bincount(module[begun & (direction == 0)], minlength=len(ranges.paths))
    whole = int(own.sum()) or 1
    found = []
    for position in sorted(set(module.tolist())):
        forward, backward, recompute = total[position].tolist()
        here = _of(module, position)
        found.append(
            CpuModuleRow(
                module=ranges.paths[position],
                type=ranges.types[position],
                calls=int(calls[position]),
                time_ns=forward,
                recompute_time_ns=recompute,
                backward_time_ns=backward,
                total_ns=forward + recompute + backward,
                self_ns=int(own[position].sum()),
                share=(forward + recompute + backward) / whole,
                longest=longest(inside.start[here], inside.end[here]),
            )
        )
    return tuple(sorted(found, key=lambda row: row.module))


def _of(module: Ints, position: int) -> Ints:
    mask: npt.NDArray[np.bool_] = module == position
    return ints(np.flatnonzero(mask))
