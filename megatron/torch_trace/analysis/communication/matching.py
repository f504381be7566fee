# SPDX-License-Identifier: Apache-2.0
"""The same collective call found again on other ranks.

The same call is the same process group and sequence number. Where torch recorded none, it is the
n-th call of the group; a rank whose trace begins or ends a few calls apart from the others' is
shifted against them until the messages agree. A call of an unknown group may be of any group, so it
is the same as none, unless the traces tell of no group at all: then all ranks are taken for one.
What a CUDA graph launched has no group in any trace; it is matched only where all groups of a rank
have the same ranks.

Thousands of ranks with thousands of calls each are millions of rows: nothing here goes row by row,
and only one group at a time is sorted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.communication.call_order import are_alike, by_number, shifted
from megatron.torch_trace.analysis.communication.collectives import (
    ONLY,
    SYMMETRIC,
    CollectiveKind,
)
from megatron.torch_trace.analysis.communication.dimensions import IN_GRAPH, UNKNOWN
from megatron.torch_trace.analysis.communication.rank_calls import RankCalls
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.code_columns import rows_with
from megatron.torch_trace.columns.intervals import Ints, ints

_UNMATCHED = frozenset({"send", "recv", "send_recv", "unknown"})
_UNEVEN = ("all_to_all", "gather", "scatter")


@dataclass(frozen=True, slots=True)
class MatchedCalls:
    """Calls that at least two ranks have, one row for each rank of each call.

    Args:
        call: number of the call, ascending, of 32 bits; `rank` and `row` have 16 if that is enough.
        rank: position of the rank in the sorted list of ranks.
        row: row of that rank's RankCalls.
        start, end: absolute ns, not aligned.
        first: the first row of each call.
        size: how many rows each call has, of 32 bits.
        symmetric: all ranks leave the call together.
        labels: the (dimension, group, collective) that there are.
        label: code of each call into `labels`.
        rows_of: for each rank, by position, its rows here, ascending, of 32 bits.
    """

    ranks: tuple[int, ...]
    call: npt.NDArray[np.int32]
    rank: npt.NDArray[np.int32 | np.uint16]
    row: npt.NDArray[np.int32 | np.uint16]
    start: Ints
    end: Ints
    first: Ints
    size: npt.NDArray[np.int32]
    symmetric: npt.NDArray[np.bool_]
    labels: tuple[tuple[str, str, str], ...]
    label: Ints
    rows_of: tuple[npt.NDArray[np.int32], ...]

    def __len__(self) -> int:
        return len(self.call)


@dataclass(frozen=True, slots=True)
class _Member:
    """A rank's calls in one group: its position, the rows, and what these are of."""

    position: int
    rows: Ints
    calls: RankCalls


def match(ranks: Mapping[int, RankCalls]) -> MatchedCalls:
    """Match calls over ranks; `messages` matches sends and receives, which two ranks have."""
    order = tuple(sorted(ranks))
    groups = [one for one in _members([ranks[rank] for rank in order]).values() if len(one) > 1]
    found = _Found(
        sum(len(one.rows) for members in groups for one in members),
        len(order),
        max((len(one.start) for one in ranks.values()), default=0),
    )
    for members in groups:
        found.add(members)
    label, first = (
        np.concatenate((ints([]), *found.label)),
        np.concatenate((ints([]), *found.first)),
    )
    symmetric = np.array([collective in SYMMETRIC for _, _, collective in found.labels], dtype=bool)
    size = np.diff(np.append(first, found.rows)).astype(np.int32)
    return MatchedCalls(
        ranks=order,
        call=found.call[: found.rows],
        rank=found.rank[: found.rows],
        row=found.row[: found.rows],
        start=found.start[: found.rows],
        end=found.end[: found.rows],
        first=first,
        size=size,
        symmetric=np.repeat(symmetric[label], size) if found.rows else np.zeros(0, dtype=bool),
        labels=tuple(found.labels),
        label=label,
        rows_of=tuple(
            np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int32)
            for pieces in found.rows_of
        ),
    )


def _members(calls: list[RankCalls]) -> dict[str, list[_Member]]:
    """By group the ranks that have calls in it, ascending."""
    untold = (UNKNOWN, IN_GRAPH)
    tells = any(kind.group not in untold for one in calls for kind in one.kinds)
    found: dict[str, list[_Member]] = {}
    # Of thousands of ranks most share their column of kinds, and so they share the rows, too.
    rows_of: dict[tuple[int, tuple[int, ...], int], Ints] = {}
    for position, one in enumerate(calls):
        keys: dict[str, list[int]] = {}
        for code, kind in enumerate(one.kinds):
            if tells and kind.group == UNKNOWN:
                continue
            if kind.group == IN_GRAPH and not kind.key.startswith(f"{ONLY} "):
                continue
            if kind.collective not in _UNMATCHED and (kind.group_size or 2) > 1:
                keys.setdefault(kind.key, []).append(code)
        for key, codes in keys.items():
            same = id(one.kind), tuple(codes), len(one.kinds)
            rows = rows_of.get(same)
            if rows is None:
                rows = np.flatnonzero(rows_with(one.kind, codes, len(one.kinds)))
                rows_of[same] = rows
            if len(rows):
                found.setdefault(key, []).append(_Member(position, rows, one))
    return found


class _Found:
    """The columns of `MatchedCalls`, filled group by group.

    Args:
        most: rows that there can be.
        ranks: how many there are.
        calls: most calls of a rank.
    """

    def __init__(self, most: int, ranks: int, calls: int) -> None:
        self.rows = 0
        self.calls = 0
        self.labels: dict[tuple[str, str, str], int] = {}
        self._named: dict[int, Ints] = {}
        self.label: list[Ints] = []
        self.first: list[Ints] = []
        self.rows_of: list[list[npt.NDArray[np.int32]]] = [[] for _ in range(ranks)]
        # Numbers of ranks and rows are small, and there are many.
        self.call = np.empty(most, dtype=np.int32)
        self.rank, self.row = _numbers_below(ranks, most), _numbers_below(calls, most)
        self.start, self.end = (np.empty(most, dtype=np.int64) for _ in range(2))

    def add(self, members: list[_Member]) -> None:
        """Match the calls of one group."""
        for one in members:
            self._name(one.calls.kinds)
        numbers = _numbers(members)
        if are_alike(numbers):
            self._add_alike(members)
        else:
            self._add_by_number(members, numbers)

    def _add_alike(self, members: list[_Member]) -> None:
        """Of ranks that call the same in the same order: one column for each, side by side."""
        calls, ranks = len(members[0].rows), len(members)
        here = self._next(calls, calls * ranks)
        shape = calls, ranks
        self.call[here].reshape(shape)[:] = np.arange(self.calls - calls, self.calls)[:, None]
        self.rank[here].reshape(shape)[:] = ints([one.position for one in members])
        row, start, end = (
            column[here].reshape(shape) for column in (self.row, self.start, self.end)
        )
        first = np.arange(here.start, here.stop, ranks, dtype=np.int32)
        for place, one in enumerate(members):
            row[:, place] = one.rows
            start[:, place] = one.calls.start[one.rows]
            end[:, place] = one.calls.end[one.rows]
            self.rows_of[one.position].append(first + np.int32(place))
        self.first.append(ints(first))
        self.label += self._labels(members[:1])

    def _add_by_number(self, members: list[_Member], numbers: list[Ints]) -> None:
        order, first = by_number(numbers)
        sizes = np.diff(np.append(first, len(order)))
        several = sizes > 1
        kept, sizes = order[np.repeat(several, sizes)], sizes[several]
        here = self._next(len(sizes), len(kept))
        self.call[here] = np.repeat(np.arange(self.calls - len(sizes), self.calls), sizes)
        self.first.append(here.start + np.cumsum(sizes) - sizes)
        self.label.append(np.concatenate(self._labels(members))[order[first[several]]])
        lengths = [len(one.rows) for one in members]
        place = np.repeat(np.arange(len(members)), lengths)[kept]
        self.rank[here] = ints([one.position for one in members])[place]
        self.row[here] = np.concatenate([one.rows for one in members])[kept]
        self.start[here] = np.concatenate([one.calls.start[one.rows] for one in members])[kept]
        self.end[here] = np.concatenate([one.calls.end[one.rows] for one in members])[kept]
        by_place = (here.start + np.argsort(place, kind="stable")).astype(np.int32)
        bounds = np.cumsum(np.bincount(place, minlength=len(members)))[:-1]
        for one, mine in zip(members, np.split(by_place, bounds), strict=True):
            self.rows_of[one.position].append(mine)

    def _name(self, kinds: tuple[CollectiveKind, ...]) -> None:
        """Give the labels of a rank their codes, unless they have some."""
        if id(kinds) not in self._named:
            codes = [
                self.labels.setdefault((one.dimension, one.group, one.collective), len(self.labels))
                for one in kinds
            ]
            self._named[id(kinds)] = ints(codes)

    def _labels(self, members: list[_Member]) -> list[Ints]:
        """Code of each row's label."""
        return [self._named[id(one.calls.kinds)][one.calls.kind[one.rows]] for one in members]

    def _next(self, calls: int, rows: int) -> slice:
        """Where the rows of a group lie, which has so many calls."""
        here = slice(self.rows, self.rows + rows)
        self.rows, self.calls = here.stop, self.calls + calls
        return here


def _numbers_below(count: int, rows: int) -> npt.NDArray[np.int32 | np.uint16]:
    """Room for numbers that are smaller than `count`."""
    kind: type[np.int32 | np.uint16] = np.uint16 if count <= 1 << 16 else np.int32
    return np.empty(rows, dtype=kind)


def _numbers(members: list[_Member]) -> list[Ints]:
    """Each call's number in its group: torch's own, where every call has one."""
    known: dict[tuple[int, int], Ints] = {}
    own = []
    for one in members:
        same = id(one.calls.seq), id(one.rows)
        if same not in known:
            known[same] = one.calls.seq[one.rows]
        own.append(known[same])
    if not any((seq == NONE).any() for seq in known.values()):
        return own
    signatures = _signatures(members)
    # A call of another size, or of another collective, is another call, wherever it stands.
    kinds = 1 + max(int(one.max(initial=0)) for one in signatures)
    places = zip(shifted(signatures), signatures, strict=True)
    return [place * kinds + signature for place, signature in places]


def _signatures(members: list[_Member]) -> list[Ints]:
    """A code for what each call is and how large; the same code on all ranks."""
    names: dict[str, int] = {}
    columns = []
    for one in members:
        of_kind = ints([names.setdefault(kind.collective, len(names)) for kind in one.calls.kinds])
        collective = of_kind[one.calls.kind[one.rows]]
        # Of these every rank has other amounts.
        differ = np.isin(collective, [names.get(name, NONE) for name in _UNEVEN])
        elements = np.where(differ, 0, one.calls.elements[one.rows])
        columns.append(np.stack((collective, elements)))
    code = np.unique(np.concatenate(columns, axis=1), axis=1, return_inverse=True)[1].ravel()
    return np.split(code, np.cumsum([column.shape[1] for column in columns])[:-1])
