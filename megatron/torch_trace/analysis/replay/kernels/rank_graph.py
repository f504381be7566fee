# SPDX-License-Identifier: Apache-2.0
"""The part of the graph that lies within one rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.replay.kernels.gpu_order import GpuOrder, gpu_order, selected
from megatron.torch_trace.analysis.replay.kernels.gpu_waits import gpu_waits
from megatron.torch_trace.analysis.replay.kernels.graph import (
    END,
    HANDOVER,
    KERNEL,
    LAUNCH,
    ORDER,
    POINT,
    STREAM,
    STREAM_WAIT,
    WAIT,
    Bools,
    GraphBuilder,
)
from megatron.torch_trace.analysis.replay.kernels.launch_times import launch_times
from megatron.torch_trace.analysis.replay.kernels.thread_points import (
    ENTER,
    FIRST,
    LAST,
    LEAVE,
    MARK,
    ThreadPoints,
    thread_points,
)
from megatron.torch_trace.analysis.replay.kernels.thread_points import WAIT as WAITING
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.integer_arrays import distinct


@dataclass(frozen=True, slots=True)
class RankGraph:
    """One rank's nodes in the graph.

    Args:
        rank: its number.
        timeline: its trace.
        shift: what is added to its times, ns.
        points: its points, in the order of their nodes.
        first_point: node of the first of them.
        rows: rows of `activity.gpu` that are in the graph.
        starts: node at which each begins.
        ends: node at which each ends, of communication; else NONE.
        marks: nodes of the starts of steps, and of the end of the last one.
        last_work: the nodes of GPU work that end the last step, if that ends after its mark.
    """

    rank: int
    timeline: Timeline
    shift: int
    points: ThreadPoints
    first_point: int
    rows: Ints
    starts: Ints
    ends: Ints
    marks: Ints
    last_work: Ints


def add_rank(
    builder: GraphBuilder, timeline: Timeline, rank: int, position: int, shift: int
) -> RankGraph:
    """Add the nodes and edges of one rank.

    Args:
        builder: of the whole graph.
        timeline: the rank's trace.
        rank: its number; position: its index among the ranks.
        shift: what brings its times onto the clock of all.
    """
    times = launch_times(timeline)
    points = thread_points(timeline, times)
    window = timeline.window
    until = max((step.cpu_end for step in window.steps), default=window.end)
    rows, within = selected(timeline, until)
    order = gpu_order(timeline, rows, times)
    waits = gpu_waits(timeline, points, rows)
    nodes = builder.nodes(
        points.time + shift,
        _durations(points, waits.cost),
        POINT,
        rank=position,
        row=points.call,
        lane=points.track,
    )
    _thread_edges(builder, points, nodes)
    starts, ends = _add_work(builder, timeline, order, position, shift)
    _work_edges(builder, timeline, (points, nodes), (order, within), (starts, ends), shift)
    finish = np.where(ends == NONE, starts, ends)
    for told in (True, False):
        mine = waits.told == told
        work = waits.work[mine]
        for own in (True, False):
            which = (ends[work] == NONE) == own
            builder.edges(
                finish[work[which]], nodes[waits.point[mine][which]], waits.lag[mine][which], WAIT,
                usual=waits.usual[mine][which], carries=own, inferred=not told,
            )  # fmt: skip
    marks = points.at(MARK)
    return RankGraph(
        rank=rank,
        timeline=timeline,
        shift=shift,
        points=points,
        first_point=int(nodes[0]) if len(nodes) else 0,
        rows=rows,
        starts=starts,
        ends=ends,
        marks=nodes[marks],
        last_work=finish[_last_of_streams(order.before)],
    )


def _durations(points: ThreadPoints, cost: Ints) -> Ints:
    """How long the CPU works from each point on."""
    following = np.append(points.time[1:], points.time[-1:])
    length = np.where(_is_followed(points), following - points.time, 0)
    length[points.role == WAITING] = cost[points.role == WAITING]
    for end in (FIRST, ENTER):
        ends = points.at(end)
        length[points.partner[ends]] = points.time[ends] - points.time[points.partner[ends]]
    return ints(length)


def _is_followed(points: ThreadPoints) -> Bools:
    """Whether the next point is on the same thread, and the thread does not rest in between."""
    same = np.zeros(len(points), dtype=bool)
    same[:-1] = points.track[1:] == points.track[:-1]
    found: Bools = same & (points.role != LAST)
    return found


def _thread_edges(builder: GraphBuilder, points: ThreadPoints, nodes: Ints) -> None:
    followed = _is_followed(points)
    leaving = points.role == LEAVE
    working = np.flatnonzero(followed & ~leaving)
    builder.edges(nodes[working], nodes[working + 1], 0, ORDER)
    resting = np.flatnonzero(followed & leaving)
    builder.edges(nodes[resting], nodes[resting + 1], 0, ORDER, carries=False)
    for end in (FIRST, ENTER):
        ends = points.at(end)
        builder.edges(nodes[points.partner[ends]], nodes[ends], 0, HANDOVER)


def _add_work(
    builder: GraphBuilder, timeline: Timeline, order: GpuOrder, position: int, shift: int
) -> tuple[Ints, Ints]:
    gpu, rows = timeline.activity.gpu, order.rows
    start, end, stream = (ints(column[rows]) for column in (gpu.start, gpu.end, gpu.stream))
    meets = timeline.is_communication[rows]
    starts = builder.nodes(
        start + shift, np.where(meets, 0, end - start), KERNEL, rank=position, row=rows, lane=stream
    )
    ends = np.full(len(rows), NONE, dtype=np.int64)
    ends[meets] = builder.nodes(
        end[meets] + shift, 0, END, rank=position, row=rows[meets], lane=stream[meets]
    )
    return starts, ends


def _work_edges(
    builder: GraphBuilder,
    timeline: Timeline,
    placed: tuple[ThreadPoints, Ints],
    ordered: tuple[GpuOrder, Bools],
    work: tuple[Ints, Ints],
    shift: int,
) -> None:
    points, nodes = placed
    order, within = ordered
    starts, ends = work
    point = points.of_calls(len(timeline.activity.calls))[timeline.launches.call[order.rows]]
    launched = within & (point != NONE)
    builder.edges(
        nodes[point[launched]], starts[launched], order.launch_lag[launched], LAUNCH,
        usual=order.usual_lag[launched], carries=False,
    )  # fmt: skip
    # What was launched before the window, or by nobody known, is where it was recorded.
    lost = np.flatnonzero(~launched)
    begin = timeline.activity.gpu.start[order.rows[lost]] + shift
    builder.edges(builder.nodes(begin, 0, POINT), starts[lost], 0, LAUNCH, carries=False)
    later = np.flatnonzero(order.before != NONE)
    _from_ends(
        builder, order.before[later], later, order.gap[later], (starts, ends), STREAM,
        usual=order.usual_gap[later],
    )  # fmt: skip
    for kind in distinct(order.kind).tolist():
        mine = order.kind == kind
        _from_ends(
            builder, order.source[mine], order.target[mine], order.lag[mine], (starts, ends), kind,
            inferred=kind != STREAM_WAIT or not order.told,
        )  # fmt: skip


def _from_ends(
    builder: GraphBuilder,
    source: Ints,
    target: Ints,
    lag: Ints,
    work: tuple[Ints, Ints],
    kind: int,
    *,
    usual: Ints | None = None,
    inferred: bool = False,
) -> None:
    """Edges from the ends of work to the starts of other work."""
    starts, ends = work
    own = ends[source] == NONE
    usual = lag if usual is None else usual
    for mine, froms in ((own, starts), (~own, ends)):
        builder.edges(
            froms[source[mine]], starts[target[mine]], lag[mine], kind,
            usual=usual[mine], carries=froms is starts, inferred=inferred,
        )  # fmt: skip


def _last_of_streams(before: Ints) -> Ints:
    """Positions of the work that no other follows on its stream."""
    followed = np.zeros(len(before), dtype=bool)
    followed[before[before != NONE]] = True
    return np.flatnonzero(~followed)
