# SPDX-License-Identifier: Apache-2.0
"""What took far longer on a rank than on its peers, in the user's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph
from megatron.torch_trace.analysis.replay.path.piece_names import PieceNames
from megatron.torch_trace.analysis.timeline.kernel_names import short_name
from megatron.torch_trace.columns.intervals import Ints


@dataclass(frozen=True, slots=True)
class Cause:
    """Work of one rank, of its CPU or GPU, that took far longer than on its peers.

    Args:
        rank: global rank.
        name: a phase or micro-batch; see `PathPiece`.
        time_ns: how much longer, in the whole window.
        count: how many times.
        function: the Python function in which most of it was, where stacks are recorded.
        kernel: of the GPU the kernel in which most of it was; None of the CPU.
    """

    rank: int
    name: str
    time_ns: int
    count: int
    function: str | None = None
    kernel: str | None = None


def causes_of(
    found: KernelGraph,
    excess: Mapping[int, tuple[Ints, Ints]],
    late_work: Mapping[int, tuple[Ints, Ints]],
) -> tuple[Cause, ...]:
    """By rank and name, the longest first.

    Args:
        found: the graph.
        excess: by rank, nodes of its CPU and how much longer each took, ns.
        late_work: by rank, rows of its GPU and how much longer each took, ns.
    """
    nodes = found.graph.nodes
    causes: list[Cause] = []
    for one, calls in zip(found.ranks, found.calls, strict=True):
        names = PieceNames(one, calls)
        if one.rank in late_work:
            causes += _of_work(names, *late_work[one.rank])
        if one.rank not in excess:
            continue
        at, more = excess[one.rank]
        middle = nodes.time[at] + nodes.duration[at] // 2 - one.shift
        tracks = names.tracks(at, nodes.lane[at])
        told = names.cpu(middle, tracks)
        for name in dict.fromkeys(told):
            mine = [n for n, other in enumerate(told) if other == name]
            worst = max(mine, key=lambda n: int(more[n]))
            causes.append(
                Cause(
                    one.rank,
                    name,
                    int(more[mine].sum()),
                    len(mine),
                    names.function(int(middle[worst]), int(tracks[worst])),
                )
            )
    return tuple(sorted(causes, key=lambda one: (-one.time_ns, one.rank, one.name)))


def _of_work(names: PieceNames, rows: Ints, more: Ints) -> Iterator[Cause]:
    told = names.compute(rows)
    for name in dict.fromkeys(told):
        mine = [n for n, other in enumerate(told) if other == name]
        worst = max(mine, key=lambda n: int(more[n]))
        kernel = names.activity.names[int(names.activity.gpu.name[rows[worst]])]
        yield Cause(
            names.rank.rank, name, int(more[mine].sum()), len(mine), kernel=short_name(kernel)
        )
