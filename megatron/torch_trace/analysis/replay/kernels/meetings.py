# SPDX-License-Identifier: Apache-2.0
"""Where ranks meet: collectives and messages, as nodes between the starts and ends of kernels.

    rank 0   start -----------.
                               meeting ---transfer---> end on rank 0, end on rank 1
    rank 1        start ------'

All ranks of a collective are there when the last has come; then data move, and they leave. Of the
ones of which a rank is missing in the traces, and of kernels that left before the last had come,
only the own duration is known. NCCL buffers what is sent: a pair of ranks of which a send was seen
to end before its receive began sends without waiting (eager).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from megatron.torch_trace.analysis.communication.clocks import align
from megatron.torch_trace.analysis.communication.collectives import CollectiveCalls
from megatron.torch_trace.analysis.communication.matching import MatchedCalls, match
from megatron.torch_trace.analysis.communication.messages import Delivery
from megatron.torch_trace.analysis.communication.rank_calls import launch_order, rank_calls
from megatron.torch_trace.analysis.replay.kernels.graph import (
    ALONE,
    MEET,
    MEETING,
    TRANSFER,
    GraphBuilder,
)
from megatron.torch_trace.analysis.replay.kernels.rank_graph import RankGraph
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.integer_arrays import distinct

_SKEW_NS = 20_000
"""By this much clocks of ranks may differ after they have been aligned."""


@dataclass(frozen=True, slots=True)
class CommonCalls:
    """Collectives of several ranks.

    Args:
        matched: calls found on several ranks.
        rows: for each rank, the rows of `activity.gpu` of the rows of its RankCalls.
        sizes: for each rank, how many ranks take part in the calls of these rows; NONE if unknown.
        shift: for each rank, what brings times of its trace onto the clock of all, ns.
    """

    matched: MatchedCalls
    rows: list[Ints]
    sizes: list[Ints]
    shift: list[int]


def common_calls(
    timelines: Mapping[int, Timeline], calls: Mapping[int, CollectiveCalls]
) -> CommonCalls:
    """Match the collectives of ranks, and align their clocks."""
    matched = match({rank: rank_calls(timelines[rank], calls[rank]) for rank in timelines})
    offset = np.zeros(len(matched.ranks), dtype=np.int64)
    if len(matched):
        offset = align(matched)[1]
    rows, sizes = [], []
    shift: list[int] = []
    for rank in matched.ranks:
        timeline, one = timelines[rank], calls[rank]
        order = launch_order(timeline, one)
        size = ints([kind.group_size or NONE for kind in one.kinds])
        rows.append(ints(one.rows[order]))
        sizes.append(size[one.kind[order]] if len(size) else ints([]))
        shift.append(timeline.activity.base_ns + int(offset[len(shift)]))
    # Times of some traces count from 1970; the first window begins at 0.
    zero = min(
        at + timelines[rank].window.start for at, rank in zip(shift, matched.ranks, strict=False)
    )
    return CommonCalls(matched, rows, sizes, [at - zero for at in shift])


@dataclass(slots=True)
class Joined:
    """What has been joined.

    Args:
        met: for each rank, which of its GPU rows (positions) end by a meeting.
        calls: collectives; messages: sends with their receives; eager: of these.
        missing: kernels of collectives in which a rank took part that has no trace here.
        nodes: of the meetings, those of collectives and those of messages.
    """

    met: list[np.ndarray]
    calls: int = 0
    messages: int = 0
    eager: int = 0
    missing: int = 0
    nodes: list[Ints] = field(default_factory=list)


class Meetings:
    """Joins the ranks of a graph."""

    def __init__(self, builder: GraphBuilder, ranks: Sequence[RankGraph]) -> None:
        self.builder = builder
        self.ranks = ranks
        self.joined = Joined([np.zeros(len(one.rows), dtype=bool) for one in ranks])
        self.nodes_of: list[Ints] = []
        for one in ranks:
            nodes = np.full(len(one.timeline.activity.gpu) + 1, NONE, dtype=np.int64)
            nodes[one.rows] = np.arange(len(one.rows))
            self.nodes_of.append(nodes)

    def add_collectives(self, common: CommonCalls) -> None:
        """Join the calls of which every rank is there."""
        matched = common.matched
        if not len(matched):
            return
        at, size = np.full(len(matched), NONE, dtype=np.int64), np.zeros(len(matched), dtype=int)
        for position, mine in enumerate(matched.rows_of):
            rows = common.rows[position][matched.row[mine]]
            at[mine] = self.nodes_of[position][rows]
            size[mine] = common.sizes[position][matched.row[mine]]
        call = matched.call
        there = np.bincount(call[at != NONE], minlength=int(call.max()) + 1)
        asked = np.zeros(len(there), dtype=np.int64)
        np.maximum.at(asked, call, size)
        complete = there >= np.maximum(asked, 2)
        self.joined.missing += int((~complete[call]).sum())
        keep = complete[call] & (at != NONE)
        self._join(call[keep], ints(matched.rank[keep]), at[keep])

    def _join(self, call: Ints, rank: Ints, at: Ints) -> None:
        start, end, starts, ends = self._times(rank, at)
        # Of those who left before the last one came, the call was another.
        first = np.flatnonzero(np.diff(call, prepend=-1))
        sizes = np.diff(np.append(first, len(call)))
        last = np.repeat(np.maximum.reduceat(start, first), sizes) if len(first) else start
        joins = end >= last - _SKEW_NS
        call, rank, at, last, end = (one[joins] for one in (call, rank, at, last, end))
        starts, ends = starts[joins], ends[joins]
        if not len(call):
            return
        first = np.flatnonzero(np.diff(call, prepend=-1))
        sizes = np.diff(np.append(first, len(call)))
        transfer = np.maximum(np.minimum.reduceat(end - last, first), 0)
        nodes = self.builder.nodes(last[first], transfer, MEETING, row=call[first])
        node = np.repeat(nodes, sizes)
        self.builder.edges(starts, node, 0, MEET, carries=False)
        self.builder.edges(node, ends, end - last - np.repeat(transfer, sizes), TRANSFER)
        self._mark(rank, at)
        self.joined.calls += len(nodes)
        self.joined.nodes.append(nodes)

    def add_messages(self, found: Sequence[Delivery]) -> None:
        """Join sends and receives."""
        position = {one.rank: at for at, one in enumerate(self.ranks)}
        sent = self._ends([(position[d.sender], d.send) for d in found])
        received = self._ends([(position[d.receiver], d.receive) for d in found])
        keep = (sent[1] != NONE) & (received[1] != NONE)
        if not keep.any():
            return
        pair = sent[0] * len(self.ranks) + received[0]
        sent, received, pair = (one[..., keep] for one in (sent, received, pair))
        begun, left, sends, sent_ends = self._times(*sent)
        arrived, ended, receives, received_ends = self._times(*received)
        met = np.maximum(begun, arrived)
        early = distinct(pair[left < arrived - _SKEW_NS])
        eager = np.isin(pair, early)
        transfer = np.where(eager, ended, np.minimum(ended, left)) - met
        transfer = np.maximum(transfer, 0)
        nodes = self.builder.nodes(met, transfer, MEETING, row=-2 - np.arange(len(met)))
        self.builder.edges(sends, nodes, 0, MEET, carries=False)
        self.builder.edges(receives, nodes, 0, MEET, carries=False)
        waits = ~eager
        goals = np.concatenate((received_ends, sent_ends[waits]))
        apart = np.concatenate((ended, left[waits])) - np.concatenate((met, met[waits]))
        apart -= np.concatenate((transfer, transfer[waits]))
        # A kernel of several messages ends with the last of them.
        soonest = np.full(self.builder.count, 1 << 62)
        np.minimum.at(soonest, goals, apart)
        lag = np.where(apart == soonest[goals], apart, 0)
        self.builder.edges(np.concatenate((nodes, nodes[waits])), goals, lag, TRANSFER)
        self._mark(*received)
        self._mark(*sent[:, waits])
        self.joined.messages += len(nodes)
        self.joined.eager += int(eager.sum())
        self.joined.nodes.append(nodes)

    def add_rest(self) -> None:
        """Communication that was joined with nobody's ends so long after its start as recorded."""
        for rank, one in enumerate(self.ranks):
            rest = np.flatnonzero((one.ends != NONE) & ~self.joined.met[rank])
            gpu = one.timeline.activity.gpu
            took = (gpu.end - gpu.start)[one.rows[rest]]
            self.builder.edges(one.starts[rest], one.ends[rest], ints(took), ALONE, carries=False)

    def _ends(self, found: list[tuple[int, int]]) -> np.ndarray:
        return np.array(
            [(rank, int(self.nodes_of[rank][row])) for rank, row in found], dtype=np.int64
        ).T.reshape(2, -1)

    def _times(self, rank: Ints, at: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Start and end of kernels on the clock of all, and their nodes."""
        columns = [np.empty(len(at), dtype=np.int64) for _ in range(4)]
        for position, one in enumerate(self.ranks):
            mine = rank == position
            gpu, here = one.timeline.activity.gpu, at[mine]
            columns[0][mine] = gpu.start[one.rows[here]] + one.shift
            columns[1][mine] = gpu.end[one.rows[here]] + one.shift
            columns[2][mine] = one.starts[here]
            columns[3][mine] = one.ends[here]
        return columns[0], columns[1], columns[2], columns[3]

    def _mark(self, rank: Ints, at: Ints) -> None:
        for position in range(len(self.ranks)):
            self.joined.met[position][at[rank == position]] = True
