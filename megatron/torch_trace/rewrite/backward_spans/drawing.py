# SPDX-License-Identifier: Apache-2.0
"""Where the backward pass of a module began and ended, by the nodes that its forward made.

    main thread    mlp          [ aten::mm, sequence 7 ]    [ aten::gelu, sequence 8 ]
    autograd's     mlp (backward)    [ GeluBackward0, 8 ] [ MmBackward0, 7 ] [ AccumulateGrad ]

A span lasts from the first to the last node, with what adds up the gradients of parameters right
behind one. It is a nanosecond longer at both ends than what is in it, so that it encloses that for
every reader. Of a graph that is run twice only the first run counts. On the GPU a span lasts from
the first to the last row that was launched in it and in nothing smaller, as Kineto has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.timeline.autograd import engine_runs, forward_operators
from megatron.torch_trace.analysis.timeline.nesting import Nesting
from megatron.torch_trace.analysis.timeline.rows import NONE, Numbered
from megatron.torch_trace.analysis.timeline.span_names import BACKWARD, module_span
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.integer_arrays import distinct
from megatron.torch_trace.rewrite.backward_spans.raw_events import RawEvents


@dataclass(slots=True)
class Span:
    """A backward span, or what the GPU did of it on one stream.

    Args:
        name: code of the module's own span.
        track: code of the thread, or of the device and stream.
        start, end: ns.
    """

    name: int
    track: int
    start: int
    end: int


def backward_spans(events: RawEvents) -> list[Span]:
    """The backward spans of modules, each before what is in it; none where the trace has some."""
    names = [name.decode("utf-8", "replace") for name in events.names]
    start, end, name, track = events.annotations
    spans_of = ((code, module_span(text)) for code, text in enumerate(names))
    modules = {code: named for code, named in spans_of if named and not named.is_rest}
    if any(named.direction == BACKWARD for named in modules.values()):
        return []
    rows = np.flatnonzero(np.isin(name, list(modules)))
    if not len(rows):
        return []
    rows = rows[np.lexsort((-end[rows], start[rows]))]
    start, end, name, track = start[rows], end[rows], name[rows], track[rows]
    spans: list[Span | None] = [None] * len(rows)
    for inside, found in _runs(events, names, Nesting(start, end, track)):
        spans[inside] = _both(spans[inside], found)
    above = _holders(start, end, track)
    # What is inside a span comes after it, so this goes from the inside out.
    for row in range(len(rows) - 1, -1, -1):
        span = spans[row]
        if span is not None:
            span.name = int(name[row])
            span.start, span.end = span.start - 1, span.end + 1
            if above[row] != NONE:
                spans[above[row]] = _both(spans[above[row]], span)
    return sorted(
        (span for span in spans if span is not None), key=lambda span: (span.start, -span.end)
    )


def gpu_spans(events: RawEvents, spans: list[Span]) -> Iterator[Span]:
    """What the GPU did of `spans`, by span and stream."""
    start, track, correlation = events.calls
    begin, end, stream, launched_by = events.gpu
    if not spans or not len(correlation) or not len(launched_by):
        return
    inner = _around(events, spans).innermost(track, start)
    order = np.argsort(correlation, kind="stable")
    at = np.minimum(np.searchsorted(correlation[order], launched_by), len(order) - 1)
    call = order[at]
    drawn = np.where(correlation[call] == launched_by, inner[call], NONE)
    rows = np.flatnonzero(drawn != NONE)
    rows = rows[np.lexsort((begin[rows], stream[rows], drawn[rows]))]
    if not len(rows):
        return
    new = np.flatnonzero((np.diff(drawn[rows]) != 0) | (np.diff(stream[rows]) != 0)) + 1
    first = np.concatenate(([0], new))
    last = np.maximum.reduceat(end[rows], first)
    for row, until in zip(rows[first].tolist(), last.tolist(), strict=True):
        yield Span(spans[drawn[row]].name, int(stream[row]), int(begin[row]), until)


def _runs(events: RawEvents, names: list[str], modules: Nesting) -> Iterator[tuple[int, Span]]:
    """For each innermost span of a module and each thread, what ran of its backward pass."""
    start, end, name, track, sequence, thread = events.operators
    order = np.lexsort((-end, start))
    ops = Numbered(*(column[order] for column in (start, end, name, track, sequence, thread)))
    makers = forward_operators(ops, names)
    nodes = np.flatnonzero(engine_runs(ops, names) & (makers != NONE))
    nodes = nodes[_first_run(ops, nodes)]
    maker = makers[nodes]
    inside = modules.innermost(ops.track[maker], ops.start[maker])
    nodes, inside = nodes[inside != NONE], inside[inside != NONE]
    order = np.lexsort((ops.start[nodes], ops.track[nodes], inside))
    nodes, inside = nodes[order], inside[order]
    if not len(nodes):
        return
    new = np.flatnonzero((np.diff(inside) != 0) | (np.diff(ops.track[nodes]) != 0)) + 1
    first = np.concatenate(([0], new))
    last = np.maximum.reduceat(ops.end[nodes], first)
    for at, until in zip(first.tolist(), last.tolist(), strict=True):
        node = nodes[at]
        yield int(inside[at]), Span(NONE, int(ops.track[node]), int(ops.start[node]), until)


def _first_run(ops: Numbered, nodes: Ints) -> Ints:
    """Of `nodes`, by time, those that had not run before; one without a number is as the last."""
    numbered = ops.sequence[nodes] != NONE
    thread, sequence = ops.forward_thread[nodes], ops.sequence[nodes]
    order = np.lexsort((sequence, thread))  # equal ones stay in order of time
    again = (np.diff(sequence[order]) == 0) & (np.diff(thread[order]) == 0)
    first = np.ones(len(nodes), dtype=bool)
    first[order[1:][again]] = False
    for track in distinct(ops.track[nodes]):
        here = np.flatnonzero(ops.track[nodes] == track)
        last = np.maximum.accumulate(np.where(numbered[here], np.arange(len(here)), 0))
        first[here] = first[here][last]
    return ints(np.flatnonzero(first))


def _both(one: Span | None, other: Span) -> Span:
    """From the begin of the first to the end of the last, in the thread of the first."""
    if one is None or (other.track != one.track and other.start < one.start):
        return Span(NONE, other.track, other.start, other.end)
    if other.track == one.track:
        one.start, one.end = min(one.start, other.start), max(one.end, other.end)
    return one


def _holders(start: Ints, end: Ints, track: Ints) -> list[int]:
    """For each range the one around it, NONE if there is none."""
    found = [NONE] * len(start)
    ends = end.tolist()
    open_: dict[int, list[int]] = {one: [] for one in distinct(track).tolist()}
    for row, (begin, thread) in enumerate(zip(start.tolist(), track.tolist(), strict=True)):
        stack = open_[thread]
        while stack and ends[stack[-1]] <= begin:
            stack.pop()
        if stack:
            found[row] = stack[-1]
        stack.append(row)
    return found


def _around(events: RawEvents, spans: list[Span]) -> Nesting:
    """Of `spans`, whose positions are its answers, and of all annotations, whose answer is NONE."""
    drawn = np.array([(s.start, s.end, s.track) for s in spans], dtype=np.int64).T
    start, end, _, track = events.annotations
    columns = np.concatenate((drawn, np.stack((start, end, track))), axis=1)
    answers = np.concatenate((np.arange(len(spans)), np.full(len(start), NONE)))
    order = np.lexsort((-columns[1], columns[0]))
    start, end, track = columns[:, order]
    return Nesting(start, end, track, answers[order])
