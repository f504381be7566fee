# SPDX-License-Identifier: Apache-2.0
"""Modules as CUDA graphs: of all that the CPU does in one, a replay is left.

    recorded   module [Python, launch, Python, launch, ..., launch]
    simulated         [replay]

Operators, the Python between them and autograd's own work are gone. A replay is no mere launch: the
module is still called, its inputs are copied, and autograd passes through it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.replay.change import LAYERS, CudaGraphs
from megatron.torch_trace.analysis.replay.effects.adjustment import Adjustment, segments_of
from megatron.torch_trace.analysis.replay.kernels.graph import WAIT, Bools
from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph
from megatron.torch_trace.analysis.replay.kernels.rank_graph import RankGraph
from megatron.torch_trace.analysis.replay.kernels.thread_points import LAUNCH
from megatron.torch_trace.analysis.replay.kernels.thread_points import WAIT as WAITING
from megatron.torch_trace.analysis.timeline.code_columns import present
from megatron.torch_trace.analysis.timeline.span_names import module_span
from megatron.torch_trace.columns.intervals import Intervals, Ints, ints
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.selection import listed
from megatron.torch_trace.format.categories import awaits_work

LAUNCHES_A_REPLAY = 5.0
"""A replay takes the CPU as long as so many launches with the Python around them.

Megatron core 0.19.2, 12 layers of 1,024 on 4 H200: 192 replays an iteration took 0.4 ms each where
a launch took 70 us (docs/benchmarks.md). From one pair of runs, so it may well be half or twice;
in tests/data/graphs-from-eager it is 3.5.
"""
_UNSURE = (0.5, 2.0)
_MOST_WAITING = 0.1
"""Of the modules: a wait in more of them is a wait of what the graph would hold. In fewer it is one
of a hook, as for the check of reduced gradients, which runs beside a graph."""
_LAYER = re.compile(r"(?:.*\.)?layers\.\d+")


@dataclass(frozen=True, slots=True)
class Captured:
    """What of a rank would be in graphs.

    Args:
        start, end, track: of each module's forward or backward on the CPU, ns.
    """

    start: Ints
    end: Ints
    track: Ints

    def __len__(self) -> int:
        return len(self.start)

    def covered(self, track: int, start: Ints, end: Ints) -> Ints:
        """How much of each stretch of a thread lies in them, ns."""
        mine = self.track == track
        return Intervals.of(self.start[mine], self.end[mine]).covered(start, end)


def captured(rank: RankGraph, module: str) -> Captured:
    """The outermost spans of modules by this name, or of layers."""
    activity = rank.timeline.activity
    ops = activity.ops
    rows = np.flatnonzero(activity.named(ops, lambda name: _is_one(name, module)) & ops.annotation)
    found: list[int] = []
    for track in present(ops.track[rows]):
        end = -1
        for row in rows[ops.track[rows] == track].tolist():
            if ops.end[row] > end:
                found.append(row)
                end = int(ops.end[row])
    return Captured(ints(ops.start[found]), ints(ops.end[found]), ints(ops.track[found]))


def _is_one(name: str, module: str) -> bool:
    span = module_span(name)
    if span is None or span.is_rest:
        return False
    if module == LAYERS:
        return _LAYER.fullmatch(span.path) is not None
    return module in (span.type, span.path) or span.path.endswith("." + module)


def cuda_graphs(found: KernelGraph, result: Adjustment, change: CudaGraphs) -> None:
    """Modules are graphs: their CPU segments are a replay each, and no launch waits for room."""
    ranges = [captured(rank, change.module) for rank in found.ranks]
    if not any(map(len, ranges)):
        what = "layer" if change.module == LAYERS else f"module called {change.module}"
        raise UsageError(
            f"{change.text}: there is no span of a {what} in these traces, so what the graphs "
            "would hold is unknown; record with --torch-profile-spans phases modules."
        )
    names = [_waits_in(rank, one) for rank, one in zip(found.ranks, ranges, strict=True)]
    if told := sorted({name for several in names for name in several}):
        raise UsageError(
            f"{change.text}: the CPU waits for the GPU there ({listed(told)}), which no CUDA graph "
            "can hold; name modules without such waits, such as self_attention."
        )
    before = result.duration.copy()
    low, high = before.copy(), before.copy()
    freed = np.zeros(len(found.graph.nodes), dtype=bool)
    for rank, one in zip(found.ranks, ranges, strict=True):
        here = segments_of(rank)
        rest, replays, waits = _replayed(rank, one, before[here])
        result.duration[here] = rest + ints(np.rint(replays))
        for variant, factor in zip((low, high), _UNSURE, strict=True):
            variant[here] = rest + ints(np.rint(factor * replays))
        freed[here] = waits
    result.may_be(low)
    result.may_be(high)
    edges = found.graph.edges
    result.without(freed[edges.target] & (edges.kind == WAIT))


def _waits_in(rank: RankGraph, graphs: Captured) -> set[str]:
    """Names of the calls that wait for the GPU in more than a few of the graphs."""
    activity = rank.timeline.activity
    calls = activity.calls
    rows = np.flatnonzero(activity.named(calls, awaits_work))
    names: set[str] = set()
    waiting = 0
    for track in present(calls.track[rows]):
        mine = rows[calls.track[rows] == track]
        own = np.flatnonzero(graphs.track == track)
        own = own[np.argsort(graphs.start[own])]
        at = np.searchsorted(graphs.start[own], calls.start[mine], side="right") - 1
        within = at >= 0
        within[within] = calls.start[mine[within]] < graphs.end[own[at[within]]]
        waiting += len(np.unique(at[within]))
        names |= {activity.names[code] for code in present(calls.name[mine[within]])}
    return names if waiting > _MOST_WAITING * len(graphs) else set()


def _replayed(
    rank: RankGraph, graphs: Captured, duration: Ints
) -> tuple[Ints, npt.NDArray[np.float64], Bools]:
    """What is left of a rank's segments, what replays take in them, and which waited for room."""
    points = rank.points
    inside = np.zeros(len(points), dtype=np.int64)
    replays = np.zeros(len(points))
    held = np.zeros(len(points), dtype=bool)
    first: list[Ints] = []
    for track in present(points.track):
        mine = np.flatnonzero(points.track == track)
        time = points.time[mine]
        works = points.role[mine] != WAITING
        inside[mine] = np.where(works, graphs.covered(track, time, time + duration[mine]), 0)
        held[mine] = graphs.covered(track, time, time + 1) > 0
        starts = graphs.start[graphs.track == track]
        at = np.searchsorted(time, starts)
        first.append(mine[at[at < len(mine)]])
    launches = int((held & (points.role == LAUNCH)).sum())
    if launches:
        each = LAUNCHES_A_REPLAY * float(inside.sum()) / launches
        np.add.at(replays, np.concatenate(first), each)
    calls = rank.timeline.activity.calls
    room = held & (points.call >= 0)
    room[room] = ~rank.timeline.activity.named(calls, awaits_work)[points.call[room]]
    return ints(np.maximum(duration - inside, 0)), replays, room
