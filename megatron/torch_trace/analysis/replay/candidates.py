# SPDX-License-Identifier: Apache-2.0
"""Changes that are worth trying, from what the traces hold."""

from __future__ import annotations

import re

import numpy as np

from megatron.torch_trace.analysis.host.blocking_copies import is_pageable
from megatron.torch_trace.analysis.replay.change import (
    LAYERS,
    Change,
    CommunicationScaled,
    CopiesScaled,
    CudaGraphs,
    GpuAsMedian,
    KernelsScaled,
    LaunchScaled,
    OperatorsScaled,
    Overlapped,
    RankAsMedian,
    WithoutSynchronisation,
)
from megatron.torch_trace.analysis.replay.kernels.graph import WAIT
from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph
from megatron.torch_trace.analysis.replay.kernels.peer_segments import (
    FarLonger,
    median_of,
    segments_of,
)
from megatron.torch_trace.analysis.timeline.kernel_names import short_name
from megatron.torch_trace.analysis.timeline.timeline import Timeline

_MOST_RANKS = 4
_MOST_KERNELS = 2
_LEAST_SLOWER = 0.02
"""Of a GPU's work: any two differ by less."""
_UNWANTED = frozenset({"default", "unknown"})


def candidates(found: KernelGraph) -> tuple[Change, ...]:
    """The late ranks first, then communication, then what all ranks do."""
    changes: list[Change] = [RankAsMedian(rank) for rank in _late_ranks(found)]
    changes += [GpuAsMedian(rank) for rank in _slow_gpus(found)]
    for dimension in _dimensions(found):
        changes.append(CommunicationScaled(dimension, 0.5))
        changes.append(Overlapped(dimension))
    changes += [CudaGraphs(LAYERS), LaunchScaled(0.0), OperatorsScaled(0.7)]
    edges = found.graph.edges
    if (edges.kind == WAIT).any():
        changes.append(WithoutSynchronisation())
    if any(_has_pageable(rank.timeline) for rank in found.ranks):
        changes.append(CopiesScaled("pageable", 0.0))
    changes += [KernelsScaled(re.escape(name), 0.8) for name in _kernels(found)]
    return tuple(changes)


def _late_ranks(found: KernelGraph) -> list[int]:
    """Ranks whose CPU works longer than that of the others of their stage, the most first."""
    late = []
    duration = found.graph.nodes.duration
    for at, one in enumerate(found.ranks):
        peers = found.peers.peers(at)
        if not peers:
            continue
        own = duration[segments_of(one)]
        columns = found.peers.columns(at, peers, duration)
        more = int((own - median_of(columns, own)).sum())
        if more > 0 or FarLonger.of(own, columns).which.any():
            late.append((-more, one.rank))
    return [rank for _, rank in sorted(late)[:_MOST_RANKS]]


def _slow_gpus(found: KernelGraph) -> list[int]:
    """The rank whose GPU works longer than those of the others of its stage, the most."""
    late = []
    duration = found.graph.nodes.duration
    for at, one in enumerate(found.ranks):
        peers = found.peers.peers(at)
        own = duration[found.work.nodes(at)]
        if peers and len(own):
            columns = found.work.columns(at, peers, duration)
            more = int((own - median_of(columns, own)).sum())
            if more > _LEAST_SLOWER * int(own.sum()):
                late.append((-more, one.rank))
    return [rank for _, rank in sorted(late)[:1]]


def _dimensions(found: KernelGraph) -> list[str]:
    """Dimensions whose communication takes longest first."""
    time: dict[str, int] = {}
    for rank, calls in zip(found.ranks, found.calls, strict=True):
        gpu = rank.timeline.activity.gpu
        took = (gpu.end - gpu.start)[calls.rows]
        for number, kind in enumerate(calls.kinds):
            if kind.dimension not in _UNWANTED:
                mine = int(took[calls.kind == number].sum())
                time[kind.dimension] = time.get(kind.dimension, 0) + mine
    return sorted(time, key=lambda name: -time[name])


def _has_pageable(timeline: Timeline) -> bool:
    activity = timeline.activity
    return bool(activity.named(activity.gpu, is_pageable).any())


def _kernels(found: KernelGraph) -> list[str]:
    """Names, short, of the kernels that compute longest."""
    time: dict[str, int] = {}
    for rank in found.ranks:
        timeline = rank.timeline
        gpu = timeline.activity.gpu
        rows = rank.rows[timeline.is_compute[rank.rows]]
        total = np.bincount(gpu.name[rows], weights=(gpu.end - gpu.start)[rows])
        for code in np.flatnonzero(total).tolist():
            name = short_name(timeline.activity.names[code])
            time[name] = time.get(name, 0) + int(total[code])
    return sorted(time, key=lambda name: -time[name])[:_MOST_KERNELS]
