# SPDX-License-Identifier: Apache-2.0
"""What is recorded on the thread of the training loop, as slices that nest in time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.host.python_frames import function_name
from megatron.torch_trace.analysis.host.threads import loop_track
from megatron.torch_trace.analysis.timeline.activity import NONE, Rows
from megatron.torch_trace.analysis.timeline.code_columns import present
from megatron.torch_trace.analysis.timeline.span_names import (
    ANY,
    merged_path,
    module_span,
    phase_of,
)
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.activity_tables import MODULE_FRAME
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.columns.true_times import nested_order
from megatron.torch_trace.format.step_names import step_number

PYTHON, SPAN, OPERATOR, CALL = "python", "span", "operator", "call"
"""What a slice is: a Python function, an annotation, an operator or a call of the runtime."""

_NUMBERED = re.compile(r"_\d+$")
_COMPILED = re.compile(r"(?<=CompiledFxGraph )\w{20,}")
"""torch.compile's own number of a graph, which differs from rank to rank."""


@dataclass(slots=True)
class Slices:
    """What the thread did, nested: sorted by start, what encloses before what is enclosed.

    Args:
        start, end: cut to the window and to what is around, none empty.
        name: position in `names`.
        names: (kind, name) of each.
    """

    start: Ints
    end: Ints
    name: Ints
    names: list[tuple[str, str]]


def slices_of(timeline: Timeline) -> Slices | None:
    """None for a trace in which nothing tells the thread, or nothing is recorded on it."""
    activity, window, track = timeline.activity, timeline.window, loop_track(timeline)
    if track == NONE:
        return None
    ops = activity.ops
    # Of equal times the first one of these encloses the others.
    tables: tuple[tuple[Rows, Callable[[Ints], Ints], str, Callable[[str], str | None]], ...] = (
        (activity.frames, _all, PYTHON, _function),
        (ops, lambda rows: rows[ops.annotation[rows]], SPAN, _span),
        (ops, lambda rows: rows[~ops.annotation[rows]], OPERATOR, _operator),
        (activity.calls, _all, CALL, str),
    )
    known: dict[tuple[str, str], int] = {}
    columns: list[tuple[Ints, Ints, Ints]] = []
    for table, chosen, kind, word in tables:
        inside = (table.end > window.start) & (table.start < window.end)
        rows = chosen(ints(np.flatnonzero(inside & activity.on_thread(table, track))))
        code = np.full(len(activity.names) + 1, NONE, dtype=np.int64)
        for one in present(table.name[rows]):
            name = word(activity.names[one])
            if name is not None:
                code[one] = known.setdefault((kind, name), len(known))
        named = code[table.name[rows]]
        rows, named = rows[named != NONE], named[named != NONE]
        start = np.maximum(table.start[rows], window.start)
        columns.append((ints(start), ints(np.minimum(table.end[rows], window.end)), ints(named)))
    start, end, code = (np.concatenate(column) for column in zip(*columns, strict=True))
    if not (end > start).any():
        return None
    start, end, code = _ordered(start, end, code)
    parent = _parents(start, end)
    if (crosses := (parent != NONE) & (end > end[parent])).any():
        # Times in whole microseconds; from the first such slice on what is around is not sure.
        _cut_to_nest(start, end, int(crosses.argmax()))
        start, end, code = _ordered(start, end, code)
    return Slices(start, end, code, list(known))


def _all(rows: Ints) -> Ints:
    return rows


def _function(frame: str) -> str:
    name = function_name(frame)
    return _NUMBERED.sub("", name) if name.startswith(MODULE_FRAME) else name


def _span(name: str) -> str | None:
    """What an annotation is called in a path; None for the steps, which only divide the window."""
    if step_number(name) is not None:
        return None
    module = module_span(name)
    if module is None:
        return phase_of(name) or _operator(name)
    return ".".join(merged_path(module.path)) + name[len(module.path) :]


def _operator(name: str) -> str:
    return _COMPILED.sub(ANY, name)


def _ordered(start: Ints, end: Ints, code: Ints) -> tuple[Ints, Ints, Ints]:
    order = nested_order(start, end)
    order = order[end[order] > start[order]]
    return ints(start[order]), ints(end[order]), ints(code[order])


def levels(start: Ints, end: Ints) -> Iterator[Ints]:
    """Rows by how many are around them, the outermost first."""
    ended = np.searchsorted(np.sort(end, kind="stable"), start, side="right")
    # A stable sort of 16 bits takes a tenth of the time; nothing lies in more than 32,767.
    depth = np.minimum(np.arange(len(start)) - ended, np.iinfo(np.int16).max).astype(np.int16)
    order = np.argsort(depth, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)


def _parents(start: Ints, end: Ints) -> Ints:
    """The row around each row, or NONE; right up to the first row that crosses another one."""
    found = np.full(len(start), NONE, dtype=np.int64)
    above: Ints | None = None
    for rows in levels(start, end):
        if above is not None:
            found[rows] = above[np.maximum(np.searchsorted(above, rows) - 1, 0)]
        above = rows
    return found


def _cut_to_nest(start: Ints, end: Ints, first: int) -> None:
    """End each row from `first` on where the one around it ends, in place."""
    open_: list[int] = []
    for row in range(len(start)):
        while open_ and end[open_[-1]] <= start[row]:
            open_.pop()
        if row >= first and open_:
            end[row] = min(end[row], end[open_[-1]])
        open_.append(row)
