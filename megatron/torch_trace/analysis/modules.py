# SPDX-License-Identifier: Apache-2.0
"""GPU work by the module that launched it; forward, backward and recomputation apart.

Modules are the spans that `--torch-profile-spans modules` puts into a trace. Work belongs to the
innermost span around its launch, on the thread of the launch: backward and recomputation run on
autograd's. What was launched in no module, or before the trace, is unattributed:

    sum of self_ns, backward_self_ns and recompute_self_ns + unattributed_ns = gpu_ns, exactly
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from megatron.torch_trace.analysis.activity import NONE
from megatron.torch_trace.analysis.codes import rows_with
from megatron.torch_trace.analysis.intervals import Ints, ints
from megatron.torch_trace.analysis.kernels import BEFORE, NO_OPERATOR
from megatron.torch_trace.analysis.moments import Moment, longest
from megatron.torch_trace.analysis.span_names import PASSES, ModuleSpan, module_span
from megatron.torch_trace.analysis.timeline import Timeline, nesting_of

_TIME, _KERNELS, _EXPOSED = range(3)


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module, or all modules of one class. Times are ns, sums of GPU work cut to the window.

    Args:
        module: dotted path; type: its class.
        calls: spans of the forward pass that begin in the window.
        self_ns: work launched in the forward pass, in no module below it.
        time_ns: the same, modules below it included.
        kernels: pieces of work, modules below included.
        backward_calls, backward_self_ns, backward_time_ns, backward_kernels: the backward pass.
        recompute_calls, recompute_self_ns, recompute_time_ns, recompute_kernels: the forward
            pass run again inside the backward pass, which does not count it.
        total_ns: time_ns + backward_time_ns + recompute_time_ns.
        exposed_communication_ns: of total_ns, communication beside which nothing computes.
        share: total_ns / all GPU work in the window.
        longest: its longest span on the CPU, of whichever pass.
    """

    module: str
    type: str
    calls: int
    self_ns: int
    time_ns: int
    kernels: int
    backward_calls: int = 0
    backward_self_ns: int = 0
    backward_time_ns: int = 0
    backward_kernels: int = 0
    recompute_calls: int = 0
    recompute_self_ns: int = 0
    recompute_time_ns: int = 0
    recompute_kernels: int = 0
    total_ns: int = 0
    exposed_communication_ns: int = 0
    share: float = 0.0
    longest: Moment | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class OutsideRow:
    """GPU work in no module by the outermost operator around its launch.

    Args:
        operator: its name, `(no operator)` or `(launched before the trace)`.
        time_ns: sum, cut to the window.
        kernels: pieces of work.
    """

    operator: str
    time_ns: int
    kernels: int


@dataclass(frozen=True, slots=True)
class ModuleAccount:
    """Where all GPU work is, in ns: sums over pieces of work, cut to the window.

    Args:
        gpu_ns: all of it, whoever launched it.
        unattributed_ns: of that, in no module.
        outside: what that is, by time.
        microbatch_ns: launched while the training loop was in a forward or backward micro-batch;
            None without spans of phases.
        microbatch_unattributed_ns: of that, in no module.
    """

    gpu_ns: int
    unattributed_ns: int
    microbatch_ns: int | None
    microbatch_unattributed_ns: int | None
    outside: tuple[OutsideRow, ...]


@dataclass(frozen=True, slots=True)
class Modules:
    """All modules by path, classes by time, and the account; None and empty without spans.

    The rows of `classes` have the class as `type` and, as `module`, nothing. A module inside one
    of its own class is not counted twice.
    """

    rows: tuple[ModuleRow, ...] = ()
    classes: tuple[ModuleRow, ...] = ()
    account: ModuleAccount | None = None


def look_at_modules(timeline: Timeline) -> Modules:
    """Everything about modules."""
    activity = timeline.activity
    spans = {}
    for code, name in enumerate(activity.names):
        span = module_span(name)
        if span:
            spans[code] = span
    ops = activity.ops
    mask = rows_with(ops.name, spans, len(activity.names)) & ops.annotation
    if not mask.any():
        return Modules()
    around = nesting_of(ops, mask).innermost(timeline.launches.track, timeline.launches.time)
    types = {span.path: span.type for span in spans.values()}
    own = _own(timeline, around, spans, list(types))
    calls = _calls(timeline, mask, spans, list(types))
    whole = int(timeline.clipped[timeline.in_window].sum())
    rows = _rows(types, own, calls, whole)
    spans_of = _longest(timeline, mask, spans)
    rows = tuple(replace(row, longest=spans_of.get(row.module)) for row in rows)
    return Modules(rows, _classes(rows, own, types, whole), _account(timeline, around, whole))


def _longest(
    timeline: Timeline, mask: np.ndarray, spans: dict[int, ModuleSpan]
) -> dict[str, Moment | None]:
    """By path the longest span that begins in the window."""
    ops, rows = timeline.activity.ops, np.flatnonzero(mask)
    by_path: dict[str, list[int]] = {}
    begun = rows[timeline.begin_inside(rows)]
    for row, code in zip(begun.tolist(), ops.name[begun].tolist(), strict=True):
        by_path.setdefault(spans[code].path, []).append(row)
    return {path: longest(ops.start[mine], ops.end[mine]) for path, mine in by_path.items()}


def _own(
    timeline: Timeline, around: Ints, spans: dict[int, ModuleSpan], paths: list[str]
) -> dict[str, Ints]:
    """By path what lies in no module below: array of passes x (time, kernels, exposed)."""
    rows = np.flatnonzero(timeline.in_window & (around != NONE))
    path, direction = _places(timeline, timeline.activity.ops.name[around[rows]], spans, paths)
    own = np.zeros((len(paths), len(PASSES), 3), dtype=np.int64)
    exposed = timeline.exposed_communication[rows]
    for measure, values in enumerate((timeline.clipped[rows], np.ones_like(rows), exposed)):
        np.add.at(own[:, :, measure], (path, direction), values)
    return dict(zip(paths, own, strict=True))


def _calls(
    timeline: Timeline, mask: np.ndarray, spans: dict[int, ModuleSpan], paths: list[str]
) -> dict[str, list[int]]:
    """By path the spans of each pass that begin in the window."""
    ops, rows = timeline.activity.ops, np.flatnonzero(mask)
    begun = rows[timeline.begin_inside(rows)]
    count = np.zeros((len(paths), len(PASSES)), dtype=np.int64)
    np.add.at(count, _places(timeline, ops.name[begun], spans, paths), 1)
    return dict(zip(paths, count.tolist(), strict=True))


def _places(
    timeline: Timeline, codes: Ints, spans: dict[int, ModuleSpan], paths: list[str]
) -> tuple[Ints, Ints]:
    """Positions in `paths` and `PASSES` of the names with these codes."""
    position = {path: n for n, path in enumerate(paths)}
    table = np.zeros((2, len(timeline.activity.names)), dtype=np.int64)
    for code, span in spans.items():
        table[:, code] = position[span.path], PASSES.index(span.direction)
    return ints(table[0][codes]), ints(table[1][codes])


def _rows(
    types: dict[str, str], own: dict[str, Ints], calls: dict[str, list[int]], whole: int
) -> tuple[ModuleRow, ...]:
    total = {path: values.copy() for path, values in own.items()}
    for path, values in own.items():
        for above in _above(path):
            if above in total:
                total[above] += values
    return tuple(
        _row(path, types[path], calls[path], own[path], total[path], whole)
        for path in sorted(types)
        # A module of which the window holds neither a call nor work is of another step.
        if any(calls[path]) or total[path].any()
    )


def _above(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _classes(
    rows: tuple[ModuleRow, ...], own: dict[str, Ints], types: dict[str, str], whole: int
) -> tuple[ModuleRow, ...]:
    zero = np.zeros((len(PASSES), 3), dtype=np.int64)
    mine: dict[str, Ints] = {row.type: zero.copy() for row in rows}
    total = {kind: zero.copy() for kind in mine}
    calls = {kind: [0, 0, 0] for kind in mine}
    for row in rows:
        path, kind = row.module, row.type
        mine[kind] += own[path]
        for holder in {types[one] for one in (*_above(path), path) if one in types}:
            total[holder] += own[path]
        counts = (row.calls, row.backward_calls, row.recompute_calls)
        calls[kind] = [a + b for a, b in zip(calls[kind], counts, strict=True)]
    found = [_row("", kind, calls[kind], mine[kind], total[kind], whole) for kind in mine]
    return tuple(sorted(found, key=lambda row: (-row.total_ns, row.type)))


def _row(path: str, kind: str, calls: list[int], own: Ints, total: Ints, whole: int) -> ModuleRow:
    forward, backward, recompute = (
        (count, int(own[n, _TIME]), int(total[n, _TIME]), int(total[n, _KERNELS]))
        for n, count in enumerate(calls)
    )
    work = int(total[:, _TIME].sum())
    share = work / whole if whole else 0.0
    exposed = int(total[:, _EXPOSED].sum())
    return ModuleRow(path, kind, *forward, *backward, *recompute, work, exposed, share)


def _account(timeline: Timeline, around: Ints, whole: int) -> ModuleAccount:
    loose = timeline.in_window & (around == NONE)
    clipped = timeline.clipped
    within = lost = None
    if timeline.has_microbatches:
        inside = timeline.in_window & (timeline.microbatch != NONE)
        within, lost = int(clipped[inside].sum()), int(clipped[inside & loose].sum())
    lost_ns = int(clipped[loose].sum())
    return ModuleAccount(whole, lost_ns, within, lost, _outside(timeline, np.flatnonzero(loose)))


def _outside(timeline: Timeline, rows: Ints) -> tuple[OutsideRow, ...]:
    activity, launches = timeline.activity, timeline.launches
    outermost = timeline.operators.outermost(launches.track[rows], launches.time[rows])
    sums: dict[str, list[int]] = {}
    works = (outermost, launches.call[rows], timeline.clipped[rows])
    for row, call, time in zip(*(column.tolist() for column in works), strict=True):
        if row == NONE:
            name = BEFORE if call == NONE else NO_OPERATOR
        else:
            name = activity.names[int(activity.ops.name[row])]
        entry = sums.setdefault(name, [0, 0])
        entry[0] += time
        entry[1] += 1
    found = [OutsideRow(name, *values) for name, values in sums.items()]
    return tuple(sorted(found, key=lambda row: (-row.time_ns, row.operator)))
