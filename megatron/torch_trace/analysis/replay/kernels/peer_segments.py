# SPDX-License-Identifier: Apache-2.0
"""Which CPU segment of another rank does the same work.

Two segments do the same work if they begin with the launch of a kernel by the same name, by the
same operator, on the same thread, in the same step, and it is the n-th such launch on both ranks.
Peers are the ranks of one pipeline stage: those of others have other work.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from megatron.torch_trace.analysis.replay.kernels.graph import Bools
from megatron.torch_trace.analysis.replay.kernels.rank_graph import RankGraph
from megatron.torch_trace.analysis.replay.kernels.thread_points import MARK
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.columns.intervals import Ints, ints

_LEAST_FAR_NS = 10_000
_LEAST_FAR_SHARE = 0.02
"""Of a rank's CPU time: less is luck, wherever it is."""
_LEAST_OF_EXCESS = 0.25
_SURELY_FAR = 4
"""One peer tells luck by one number: beside stretches that are so many times farther, the others
are luck, too."""


def stage_of(rank: RankGraph) -> int | None:
    """Pipeline stage of a rank, as far as its trace tells."""
    return rank.timeline.activity.metadata.coordinates.get("pp")


def segments_of(rank: RankGraph) -> slice:
    """The nodes of a rank's points."""
    return slice(rank.first_point, rank.first_point + len(rank.points))


class PeerSegments:
    """The segments of ranks beside those of their peers.

    Args:
        ranks: of the graph; a rank's number here is its position in them.
    """

    def __init__(self, ranks: Sequence[RankGraph]) -> None:
        self.ranks = ranks
        self._places: dict[tuple[int, int], Ints] = {}

    def peers(self, position: int, without: Collection[int] = ()) -> list[int]:
        """Positions of the other ranks of the same stage; `without` are ranks' numbers."""
        stage = stage_of(self.ranks[position])
        return [
            other
            for other, one in enumerate(self.ranks)
            if other != position and stage_of(one) == stage and one.rank not in without
        ]

    def columns(self, position: int, others: Sequence[int], duration: Ints) -> list[Ints]:
        """Of each segment what each of the others takes for the same work; NONE if it has none.

        Args:
            position: whose segments.
            others: positions.
            duration: of all nodes of the graph, ns.
        """
        found = []
        for other in others:
            index = self._index(position, other)
            values = np.append(duration[segments_of(self.ranks[other])], NONE)
            found.append(ints(values[index]))
        return found

    def _index(self, position: int, other: int) -> Ints:
        """For each segment the one of the other rank; NONE if there is none."""
        key = position, other
        if key not in self._places:
            self._places[key] = places(self._ids[position], self._ids[other])
        return self._places[key]

    @cached_property
    def _ids(self) -> list[Ints]:
        return segment_ids(self.ranks)


def segment_ids(ranks: Sequence[RankGraph]) -> list[Ints]:
    """For each rank a number for each segment; the same number on several ranks: the same work."""
    names: dict[tuple[object, ...], int] = {}
    keys = [_keys(rank, names) for rank in ranks]
    return [key * (1 << 32) + occurrence(key) for key in keys]


def places(ids: Ints, other: Ints) -> Ints:
    """For each number its position among others; NONE where it is not there."""
    if not len(other):
        return np.full(len(ids), NONE, dtype=np.int64)
    order = np.argsort(other)
    at = np.minimum(np.searchsorted(other[order], ids), len(other) - 1)
    return ints(np.where(other[order][at] == ids, order[at], NONE))


def _keys(rank: RankGraph, names: dict[tuple[object, ...], int]) -> Ints:
    timeline, points = rank.timeline, rank.points
    activity = timeline.activity
    gpu, calls = activity.gpu, activity.calls
    # The first work of each call, and who launched it.
    work = np.full(len(calls) + 1, NONE, dtype=np.int64)
    call = timeline.launches.call[rank.rows]
    work[call[::-1]] = rank.rows[::-1]
    row = np.where(points.call == NONE, NONE, work[points.call])
    known = row != NONE
    launched = np.where(known, gpu.name[row] if len(gpu) else NONE, NONE)
    operator = timeline.launching_operator[row] if len(gpu) else row
    by = np.where(known & (operator != NONE), activity.ops.name[operator], NONE)
    name = np.where(points.call == NONE, NONE, calls.name[points.call] if len(calls) else NONE)
    name = np.where(known, NONE, name)
    marks = np.sort(points.time[points.role == MARK])
    step = np.searchsorted(marks, points.time, side="right")
    main = points.track == (points.track[points.at(MARK)][0] if len(marks) else NONE)
    columns = np.stack((points.role, step, main, launched, by, name))
    distinct, inverse = np.unique(columns, axis=1, return_inverse=True)
    codes = []
    for role, number, on_main, *texts in distinct.T.tolist():
        # Codes of names differ from trace to trace.
        words = [activity.names[code] if code != NONE else "" for code in texts]
        codes.append(names.setdefault((role, number, on_main, *words), len(names)))
    return ints(ints(codes)[inverse.ravel()])


def occurrence(key: Ints) -> Ints:
    """How many earlier ones have the same key."""
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    sizes = np.diff(np.append(first, len(key)))
    found = np.empty(len(key), dtype=np.int64)
    found[order] = np.arange(len(key)) - np.repeat(first, sizes)
    return found


def median_of(columns: Sequence[Ints], otherwise: Ints) -> Ints:
    """Median over ranks of each segment, where two or more, or the only other one, have it."""
    table = _table(columns)
    table = np.sort(table, axis=0)
    count = (~np.isnan(table)).sum(axis=0)
    at = np.arange(table.shape[1])
    low = table[np.maximum((count - 1) // 2, 0), at]
    high = table[np.minimum(count // 2, len(columns) - 1), at]
    middle = np.where(count > 0, (low + high) / 2, otherwise)
    return ints(np.rint(middle).astype(np.int64))


@dataclass(frozen=True, slots=True)
class FarLonger:
    """Segments of a rank that take far longer than on any peer.

    Args:
        which: of its segments; none where they are little of what the rank's CPU takes longer, so
            that it is slower everywhere.
        luck: by how much a segment differs among the peers at most, ns.
    """

    which: Bools
    luck: float

    @classmethod
    def of(cls, own: Ints, columns: Sequence[Ints]) -> FarLonger:
        """Find them.

        Args:
            own: the rank's segments, ns.
            columns: the same of its peers.
        """
        excess = own - median_of(columns, own)
        table = _table(columns)
        several = (~np.isnan(table)).sum(axis=0) > 1
        if several.any():
            these = table[:, several]
            luck = float((np.nanmax(these, axis=0) - np.nanmin(these, axis=0)).max())
        else:
            # Of two ranks either is as often the longer one.
            luck = float((-excess).max(initial=0))
        far = excess > max(luck, _LEAST_FAR_NS)
        sure = excess > max(_SURELY_FAR * luck, _LEAST_FAR_NS)
        if sure.any() and not several.any():
            far = sure
        told = int(excess[far].sum())
        enough = max(_LEAST_FAR_SHARE * int(own.sum()), _LEAST_OF_EXCESS * int(excess.sum()))
        which: Bools = far & (told >= enough)
        return cls(which, luck)


def _table(columns: Sequence[Ints]) -> np.ndarray:
    table = np.stack(columns).astype(np.float64)
    table[table < 0] = np.nan
    return table
