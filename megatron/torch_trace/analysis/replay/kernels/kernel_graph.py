# SPDX-License-Identifier: Apache-2.0
"""From the traces of some ranks to one graph."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass

from megatron.torch_trace.analysis.communication.collectives import CollectiveCalls, attribute
from megatron.torch_trace.analysis.communication.messages import deliveries, messages_of
from megatron.torch_trace.analysis.replay.kernels.graph import Graph, GraphBuilder
from megatron.torch_trace.analysis.replay.kernels.meetings import Joined, Meetings, common_calls
from megatron.torch_trace.analysis.replay.kernels.peer_kernels import PeerKernels
from megatron.torch_trace.analysis.replay.kernels.peer_segments import PeerSegments
from megatron.torch_trace.analysis.replay.kernels.rank_graph import RankGraph, add_rank
from megatron.torch_trace.analysis.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class KernelGraph:
    """The graph of an iteration at the level of kernels.

    Args:
        graph: nodes and edges.
        ranks: each rank's part, ascending.
        calls: communication of each of them.
        joined: what was joined over ranks.
        peers: the CPU segments of ranks beside those of others.
        work: the same of their GPU work.
    """

    graph: Graph
    ranks: tuple[RankGraph, ...]
    calls: tuple[CollectiveCalls, ...]
    joined: Joined
    peers: PeerSegments
    work: PeerKernels


def kernel_graph(timelines: Mapping[int, Timeline]) -> KernelGraph:
    """The graph of the ranks whose traces are given, by rank."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return _build(dict(sorted(timelines.items())))
    finally:
        if was_on:
            gc.enable()


def _build(timelines: Mapping[int, Timeline]) -> KernelGraph:
    calls = {rank: attribute(timeline) for rank, timeline in timelines.items()}
    common = common_calls(timelines, calls)
    builder = GraphBuilder()
    ranks = tuple(
        add_rank(builder, timeline, rank, position, common.shift[position])
        for position, (rank, timeline) in enumerate(timelines.items())
    )
    meetings = Meetings(builder, ranks)
    meetings.add_collectives(common)
    meetings.add_messages(
        deliveries(
            {rank: messages_of(timeline, calls[rank], rank) for rank, timeline in timelines.items()}
        )
    )
    meetings.add_rest()
    return KernelGraph(
        builder.graph(),
        ranks,
        tuple(calls.values()),
        meetings.joined,
        PeerSegments(ranks),
        PeerKernels(ranks),
    )
