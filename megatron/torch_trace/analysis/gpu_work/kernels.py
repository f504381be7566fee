# SPDX-License-Identifier: Apache-2.0
"""GPU work by kernel, by family, by the operator that launched it, and by shape."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.code_columns import present
from megatron.torch_trace.analysis.timeline.kernel_names import (
    COMMUNICATION,
    COMPUTE,
    MEMORY,
    family_of,
)
from megatron.torch_trace.analysis.timeline.launches import without_link
from megatron.torch_trace.analysis.timeline.moment import Moment, longest
from megatron.torch_trace.analysis.timeline.timeline import Timeline, nesting_of
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.categories import launches_graph
from megatron.torch_trace.format.integer_arrays import distinct

NO_OPERATOR = "(no operator)"
BEFORE = "(launched before the trace)"
NO_LINK = "(launch not recorded)"


@dataclass(frozen=True, slots=True)
class KernelRow:
    """Work by one name.

    Args:
        name: as in the trace.
        kind: class: compute, communication or memory.
        family: gemm, attention, ...; the class itself for communication and memory.
        calls: how many run in the window.
        time_ns: sum of their times in the window (of one kernel's own calls a sum is what is meant;
            unions are for classes).
        mean_ns, median_ns, max_ns: of their whole durations.
        share: time_ns / window.
        longest: the longest call.
    """

    name: str
    kind: str
    family: str
    calls: int
    time_ns: int
    mean_ns: float
    median_ns: int
    max_ns: int
    share: float
    longest: Moment | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """Kernels of one family; `time_ns` is the union of all of them."""

    family: str
    kind: str
    calls: int
    time_ns: int
    share: float


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """GPU work by the innermost operator that launched it.

    Args:
        operator: `aten::mm`, `autograd::engine::...`; `cudaGraphLaunch in step 3` for the replay of
            a graph; NO_OPERATOR for other launches outside of all operators, BEFORE for work whose
            launch is not in the trace, NO_LINK for work of which nothing tells the launch.
        shape: sizes of the operator's inputs as torch wrote them; None in the table by operator, ""
            where they were not recorded.
        launches: calls of the operator that launched something.
        kernels: pieces of GPU work; time_ns: sum of their times in the window.
        share: time_ns / window.
        longest: the longest of these pieces.
    """

    operator: str
    shape: str | None
    launches: int
    kernels: int
    time_ns: int
    share: float
    longest: Moment | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Casts:
    """Kernels launched by `aten::_to_copy`, changes of dtype or layout; `time_ns` is their sum."""

    calls: int
    time_ns: int
    share: float


def casts(timeline: Timeline) -> Casts:
    """Time of the kernels that convert tensors; copies between host and device are memory."""
    activity, launches = timeline.activity, timeline.launches
    mask = activity.named(activity.ops, lambda name: name == "aten::_to_copy")
    mask &= ~activity.ops.annotation
    rows = np.flatnonzero(timeline.in_window & timeline.is_compute)
    inside = nesting_of(activity.ops, mask).innermost(launches.track[rows], launches.time[rows])
    mine = rows[inside != NONE]
    time = int(timeline.clipped[mine].sum())
    return Casts(len(mine), time, timeline.window.share(time))


def kernel_rows(timeline: Timeline) -> tuple[KernelRow, ...]:
    """Every name of GPU work in the window, by time.

    `time_ns` is a sum, cut to the window; mean, median and longest are of whole calls, ns.
    Source: docs/computed.md, "Classes of time".
    """
    gpu, names = timeline.activity.gpu, timeline.activity.names
    rows = np.flatnonzero(timeline.in_window)
    duration = gpu.end - gpu.start
    # One name can be communication with collective arguments and compute without.
    key = gpu.name[rows] * 2 + timeline.is_communication[rows]
    found = []
    for members in _groups(key):
        mine = rows[members]
        first = int(mine[0])
        kind = timeline.class_of(first)
        name = names[int(gpu.name[first])]
        time = int(timeline.clipped[mine].sum())
        found.append(
            KernelRow(
                name=name,
                kind=kind,
                family=family_of(name) if kind == COMPUTE else kind,
                calls=len(mine),
                time_ns=time,
                mean_ns=float(duration[mine].mean()),
                median_ns=int(np.median(duration[mine])),
                max_ns=int(duration[mine].max()),
                share=timeline.window.share(time),
                longest=longest(gpu.start[mine], gpu.end[mine]),
            )
        )
    return tuple(sorted(found, key=lambda row: (-row.time_ns, row.name)))


def family_rows(timeline: Timeline) -> tuple[FamilyRow, ...]:
    """Every family in the window, by time: a union in ns, and a share of 1 of the window."""
    gpu, names = timeline.activity.gpu, timeline.activity.names
    rows = np.flatnonzero(timeline.in_window)
    families: dict[str, int] = {COMMUNICATION: 0, MEMORY: 1}
    code_of = np.zeros(max(len(names), 1), dtype=np.int64)
    for code in present(gpu.name[rows]):
        family = family_of(names[code])
        code_of[code] = families.setdefault(family, len(families))
    codes = code_of[gpu.name[rows]]
    codes[timeline.is_communication[rows]] = 0
    codes[timeline.is_memory[rows]] = 1
    found = []
    for name, code in families.items():
        mask = np.zeros(len(gpu), dtype=bool)
        mask[rows[codes == code]] = True
        calls = int(mask.sum())
        if calls:
            time = timeline.union(mask).total
            kind = name if name in (COMMUNICATION, MEMORY) else COMPUTE
            found.append(FamilyRow(name, kind, calls, time, timeline.window.share(time)))
    return tuple(sorted(found, key=lambda row: (-row.time_ns, row.family)))


def operator_rows(timeline: Timeline, *, by_shape: bool = False) -> tuple[OperatorRow, ...]:
    """GPU work by launching operator, or by operator and shape, by time in ns.

    Source: docs/computed.md, "Kernels and operators".
    """
    activity = timeline.activity
    ops = activity.ops
    rows = np.flatnonzero(timeline.in_window)
    op = timeline.launching_operator[rows]
    name = np.where(op == NONE, -1, ops.name[op] if len(ops) else -1)
    name[timeline.launches.time[rows] == NONE] = -2
    name[without_link(activity, timeline.launches)[rows]] = -3
    shape = np.where(op == NONE, -1, ops.shape[op] if len(ops) else -1)
    replayed, label, labels = _replays(timeline, rows, op)
    name[replayed] = len(activity.names) + label
    shape[replayed] = -1
    words = {-1: NO_OPERATOR, -2: BEFORE, -3: NO_LINK}
    words.update({len(activity.names) + number: text for number, text in enumerate(labels)})
    key = ints(name) * (len(activity.shapes) + 2) + shape if by_shape else name
    found = []
    for members in _groups(key):
        mine = rows[members]
        first = int(members[0])
        code = int(name[first])
        time = int(timeline.clipped[mine].sum())
        shape_code = int(shape[first])
        sizes = activity.shapes[shape_code] if shape_code != NONE else ""
        found.append(
            OperatorRow(
                operator=words.get(code) or activity.names[code],
                shape=sizes if by_shape else None,
                launches=_launches(timeline, op[members], mine) if code >= 0 else 0,
                kernels=len(mine),
                time_ns=time,
                share=timeline.window.share(time),
                longest=longest(activity.gpu.start[mine], activity.gpu.end[mine]),
            )
        )
    return tuple(sorted(found, key=lambda row: (-row.time_ns, row.operator, row.shape or "")))


def _launches(timeline: Timeline, op: Ints, rows: Ints) -> int:
    """Calls of the operator; of a graph outside of all operators, its launches."""
    return len(distinct(timeline.launches.call[rows] if (op == NONE).any() else op))


def _replays(timeline: Timeline, rows: Ints, op: Ints) -> tuple[Ints, Ints, list[str]]:
    """Replays of graphs that no operator launched: their positions in `rows`, and by which launch.

    Returns:
        Positions, for each the number of its text, and the texts.
    """
    activity, calls = timeline.activity, timeline.launches.call[rows]
    of_graph = activity.named(activity.calls, launches_graph)
    replayed = np.flatnonzero((calls != NONE) & (op == NONE))
    replayed = replayed[of_graph[calls[replayed]]]
    kinds, label = np.unique(
        np.stack((activity.calls.name[calls[replayed]], timeline.step_of[rows][replayed])),
        axis=1,
        return_inverse=True,
    )
    texts = []
    for call, step in kinds.T.tolist():
        where = f" in step {timeline.window.steps[step].number}" if step != NONE else ""
        texts.append(f"{activity.names[call]}{where}")
    return replayed, ints(label.reshape(-1)), texts


def _groups(key: Ints) -> list[Ints]:
    """Positions of equal keys, each group ascending."""
    order = np.argsort(key, kind="stable")
    edges = np.flatnonzero(np.diff(key[order])) + 1
    return [ints(part) for part in np.split(order, edges)] if len(order) else []
