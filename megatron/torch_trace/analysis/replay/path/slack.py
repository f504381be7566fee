# SPDX-License-Identifier: Apache-2.0
"""Slack: by how much something could be later without the iteration ending later.

A node may be as late as everything that waits for it allows, up to the end of the window. A rank is
as free as the middle of its CPU's work; a span is later if it begins later, a collective if it ends
later.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from megatron.torch_trace.analysis.communication.collectives import CollectiveCalls
from megatron.torch_trace.analysis.replay.answers import (
    CollectiveSlack,
    RankSlack,
    Slack,
    SpanSlack,
    middle_slack,
)
from megatron.torch_trace.analysis.replay.kernels.graph import TRANSFER
from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph
from megatron.torch_trace.analysis.replay.kernels.longest_path import LongestPaths
from megatron.torch_trace.analysis.replay.kernels.peer_segments import segments_of
from megatron.torch_trace.analysis.replay.kernels.rank_graph import RankGraph
from megatron.torch_trace.columns.intervals import Ints, ints

_EVER = 1 << 61


def node_slack(found: KernelGraph, paths: LongestPaths, weights: Ints, times: Ints) -> Ints:
    """How much later each node may be, ns, without the last rank's end of the window being later.

    Args:
        found: the graph.
        paths: it, made ready.
        weights: of its edges, ns, shape (edges,).
        times: when each node is reached, ns, shape (nodes,), which the slack has too.

    Source: docs/computed.md, "Gains and slack".
    """
    duration = found.graph.nodes.duration
    end = max(
        [int(times[rank.marks[-1]]) for rank in found.ranks]
        + [int((times + duration)[rank.last_work].max(initial=0)) for rank in found.ranks]
    )
    last = np.full(len(times), _EVER, dtype=np.int64)
    for rank in found.ranks:
        last[rank.marks[-1]] = end
        last[rank.last_work] = end - duration[rank.last_work]
    latest = paths.latest(weights, last)
    return ints(np.where(latest < _EVER // 2, latest - times, _EVER))


def slack_of(found: KernelGraph, slack: Ints) -> Slack:
    """By rank, span and collective.

    Args:
        found: the graph.
        slack: of its nodes.
    """
    duration = found.graph.nodes.duration
    ranks = [
        RankSlack(one.rank, middle_slack(slack[segments_of(one)], duration[segments_of(one)]))
        for one in found.ranks
    ]
    spans: dict[tuple[int, int, str], int] = {}
    for one in found.ranks:
        for step, name, ns in _spans(one, slack):
            key = one.rank, step, name
            spans[key] = min(spans.get(key, ns), ns)
    return Slack(
        tuple(ranks),
        tuple(SpanSlack(*key, ns) for key, ns in spans.items()),
        tuple(_collectives(found, slack)),
    )


def _spans(rank: RankGraph, slack: Ints) -> Iterator[tuple[int, str, int]]:
    """Step, name and slack of each span of a phase: of the first thing that its thread does in it.

    A span in which it does nothing that the graph has may be as late as what follows.
    """
    timeline, points = rank.timeline, rank.points
    activity, ops = timeline.activity, timeline.activity.ops
    main = np.flatnonzero(points.track == timeline.window.track)
    rows = timeline.phase_spans
    at = np.searchsorted(points.time[main], ops.start[rows])
    starts = ints([step.start for step in timeline.window.steps])
    steps = np.searchsorted(starts, ops.start[rows], side="right") - 1
    for row, position, step in zip(rows.tolist(), at.tolist(), steps.tolist(), strict=True):
        if position < len(main) and step >= 0:
            ns = max(0, int(slack[rank.first_point + main[position]]))
            yield timeline.window.steps[step].number, activity.names[int(ops.name[row])], ns


def _collectives(found: KernelGraph, slack: Ints) -> Iterator[CollectiveSlack]:
    """Each call that ranks have in common, in the order of time."""
    nodes, edges = found.graph.nodes, found.graph.edges
    joined = [one for one in found.joined.nodes if len(one)]
    if not joined:
        return
    names = [_Named(rank, calls) for rank, calls in zip(found.ranks, found.calls, strict=True)]
    rows = np.flatnonzero(edges.kind == TRANSFER)
    rows = rows[np.argsort(edges.source[rows], kind="stable")]
    meetings = np.concatenate(joined)
    for node in meetings[np.argsort(nodes.time[meetings], kind="stable")].tolist():
        low, high = np.searchsorted(edges.source[rows], (node, node + 1))
        ends = edges.target[rows[low:high]]
        if len(ends):
            positions = nodes.rank[ends].tolist()
            first = names[positions[0]]
            dimension, collective = first.kind(int(nodes.row[ends[0]]))
            yield CollectiveSlack(
                tuple(sorted({found.ranks[at].rank for at in positions})),
                first.step(int(nodes.time[node])),
                dimension,
                collective,
                max(0, int(slack[node])),
            )


class _Named:
    """What the communication of one rank is called, and in which step a time is."""

    def __init__(self, rank: RankGraph, calls: CollectiveCalls) -> None:
        self.rank, self.calls = rank, calls
        self.starts = ints([step.start + rank.shift for step in rank.timeline.window.steps])

    def kind(self, row: int) -> tuple[str, str]:
        at = int(np.searchsorted(self.calls.rows, row))
        if at >= len(self.calls.rows) or int(self.calls.rows[at]) != row:
            return "unknown", "communication"
        kind = self.calls.kinds[int(self.calls.kind[at])]
        return kind.dimension, kind.collective

    def step(self, time: int) -> int:
        at = max(0, int(np.searchsorted(self.starts, time, side="right")) - 1)
        return self.rank.timeline.window.steps[at].number
