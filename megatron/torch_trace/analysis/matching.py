# SPDX-License-Identifier: Apache-2.0
"""The same collective call found again on other ranks.

The same call is the same process group and sequence number. Where torch recorded none, it is the
n-th call of the group; a rank whose trace begins or ends a few calls apart from the others' is
shifted against them until the messages agree.

All ranks' calls are one table; thousands of ranks with thousands of calls each are millions of
rows, so nothing here goes row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.activity import NONE
from megatron.torch_trace.analysis.collectives import (
    SYMMETRIC,
    CollectiveCalls,
    CollectiveKind,
    starts_and_ends,
)
from megatron.torch_trace.analysis.intervals import Ints, ints
from megatron.torch_trace.analysis.timeline import Timeline

_MOST_SHIFT = 16
_UNMATCHED = frozenset({"send", "recv", "send_recv", "unknown"})


@dataclass(frozen=True, slots=True)
class RankCalls:
    """Collective calls of one rank, as other ranks need to see them, in the order of launch.

    Args:
        start, end: absolute, ns since the epoch where the trace tells it.
        kind: codes into `kinds`.
        kinds: what the codes mean.
        step: number of the step that launched it, -1 if unknown.
        bytes, elements, seq: see `collectives.Message`.
    """

    start: Ints
    end: Ints
    kind: Ints
    kinds: tuple[CollectiveKind, ...]
    step: Ints
    bytes: Ints
    elements: Ints
    seq: Ints


@dataclass(frozen=True, slots=True)
class MatchedCalls:
    """Calls that at least two ranks have, one row for each rank of each call.

    Args:
        call: number of the call, ascending.
        rank: position of the rank in the sorted list of ranks.
        row: row of that rank's RankCalls.
        start, end: absolute ns, not aligned.
        symmetric: all ranks leave the call together.
        labels: the (dimension, group, collective) that there are.
        label: code of each call into `labels`.
        rows_of: for each rank, by position, its rows here, ascending.
    """

    ranks: tuple[int, ...]
    call: Ints
    rank: Ints
    row: Ints
    start: Ints
    end: Ints
    symmetric: npt.NDArray[np.bool_]
    labels: tuple[tuple[str, str, str], ...]
    label: Ints
    rows_of: tuple[Ints, ...]

    def __len__(self) -> int:
        return len(self.call)


def rank_calls(timeline: Timeline, calls: CollectiveCalls) -> RankCalls:
    """What `match` needs of one rank, in the order of launch."""
    start, end = starts_and_ends(timeline, calls)
    base = timeline.activity.base_ns
    launched = timeline.launches.time[calls.rows]
    order = np.lexsort((start, np.where(launched < 0, start, launched)))
    step = timeline.step_of[calls.rows]
    numbers = ints([*(s.number for s in timeline.window.steps), -1])
    return RankCalls(
        start=start[order] + base,
        end=end[order] + base,
        kind=calls.kind[order],
        kinds=calls.kinds,
        step=numbers[step[order]],
        bytes=calls.bytes[order],
        elements=calls.elements[order],
        seq=calls.seq[order],
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """The calls of all ranks that can be matched: by rank, then in the order of launch.

    `group` and `label` are codes; `number` tells a group's calls apart, once it is known.
    """

    labels: tuple[tuple[str, str, str], ...]
    group: Ints
    rank: Ints
    row: Ints
    label: Ints
    elements: Ints
    seq: Ints
    start: Ints
    end: Ints


def match(ranks: Mapping[int, RankCalls]) -> MatchedCalls:
    """Match calls over ranks; sends and receives are between two ranks only and left out."""
    order = tuple(sorted(ranks))
    table = _table([ranks[rank] for rank in order])
    number = _numbers(table)
    # A number can occur twice on one rank: then the first is the first of the others, and so on.
    again = _times_before(table.group, table.rank, number)
    by_call = np.lexsort((table.rank, again, number, table.group))
    keys = [key[by_call] for key in (table.group, number, again)]
    first = _first_of_runs(*keys)
    sizes = np.diff(np.append(first, len(by_call)))
    several = sizes > 1
    kept = by_call[np.repeat(several, sizes)]
    label = table.label[by_call[first[several]]]
    call = np.repeat(np.arange(int(several.sum())), sizes[several])
    symmetric = np.array([collective in SYMMETRIC for _, _, collective in table.labels], dtype=bool)
    rank_of = table.rank[kept]
    by_rank = np.argsort(rank_of, kind="stable")
    bounds = np.searchsorted(rank_of[by_rank], np.arange(1, len(order)))
    return MatchedCalls(
        ranks=order,
        call=call,
        rank=rank_of,
        row=table.row[kept],
        start=table.start[kept],
        end=table.end[kept],
        symmetric=symmetric[label][call] if len(call) else np.zeros(0, dtype=bool),
        labels=table.labels,
        label=label,
        rows_of=tuple(np.split(by_rank, bounds)),
    )


def _table(calls: list[RankCalls]) -> _Table:
    groups: dict[str, int] = {}
    labels: dict[tuple[str, str, str], int] = {}
    parts: list[tuple[Ints, ...]] = []
    for position, one in enumerate(calls):
        group_of, label_of = [], []
        for kind in one.kinds:
            alone = kind.collective in _UNMATCHED or (kind.group_size or 2) < 2
            group_of.append(NONE if alone else groups.setdefault(kind.key, len(groups)))
            label = (kind.dimension, kind.group, kind.collective)
            label_of.append(labels.setdefault(label, len(labels)))
        if not one.kinds:
            continue
        group = ints(group_of)[one.kind]
        rows = np.flatnonzero(group != NONE)
        columns = (one.elements, one.seq, one.start, one.end)
        parts.append(
            (
                group[rows],
                np.full(len(rows), position),
                rows,
                ints(label_of)[one.kind[rows]],
                *(column[rows] for column in columns),
            )
        )
    if not parts:
        parts = [(ints([]),) * 8]
    columns_of_all = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return _Table(tuple(labels), *columns_of_all)


def _numbers(table: _Table) -> Ints:
    """Each call's number in its group: torch's own, where all of the group have one."""
    number = table.seq.copy()
    unknown = np.unique(table.group[table.seq == NONE])
    if not len(unknown):
        return number
    concerned = np.flatnonzero(np.isin(table.group, unknown))
    # All-to-all exchanges other amounts on every rank.
    exchange = ints([collective == "all_to_all" for _, _, collective in table.labels])
    label = table.label[concerned]
    elements = np.where(exchange[label] == 1, 0, table.elements[concerned])
    signature = np.unique(np.stack((label, elements)), axis=1, return_inverse=True)[1].ravel()
    by_group = np.argsort(table.group[concerned], kind="stable")
    group, rank = table.group[concerned][by_group], table.rank[concerned][by_group]
    bounds = np.append(_first_of_runs(group, rank), len(group)).tolist()
    members: dict[int, list[slice]] = {}
    for begin, end in pairwise(bounds):
        members.setdefault(int(group[begin]), []).append(slice(begin, end))
    signature = signature[by_group]
    found = np.zeros(len(concerned), dtype=np.int64)
    for slices in members.values():
        reference = max(slices, key=lambda one: one.stop - one.start)
        shifts: dict[bytes, int] = {}
        for one in slices:
            own = signature[one]
            shift = shifts.get(own.tobytes())
            if shift is None:
                # Most ranks of a group do the same.
                shift = shifts[own.tobytes()] = _shift(signature[reference], own)
            found[one] = np.arange(shift, shift + len(own))
    number[concerned[by_group]] = found
    return number


def _times_before(group: Ints, rank: Ints, number: Ints) -> Ints:
    """How many earlier rows of the same group and rank have the same number."""
    order = np.lexsort((number, rank, group))
    first = _first_of_runs(group[order], rank[order], number[order])
    sizes = np.diff(np.append(first, len(order)))
    found = np.empty(len(order), dtype=np.int64)
    found[order] = np.arange(len(order)) - np.repeat(first, sizes)
    return found


def _first_of_runs(*keys: Ints) -> Ints:
    """Where, in sorted keys, another combination of them begins."""
    if not len(keys[0]):
        return ints([])
    changes = np.zeros(len(keys[0]), dtype=bool)
    changes[0] = True
    for key in keys:
        changes[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changes)


def _shift(reference: Ints, other: Ints) -> int:
    """How far `other` begins behind `reference`: the shift with the most messages that agree."""
    if np.array_equal(reference, other):
        return 0
    best, most = 0, -1
    longest = max(len(reference) - len(other), 0) + _MOST_SHIFT
    for shift in sorted(range(-_MOST_SHIFT, longest + 1), key=abs):
        begin, end = max(0, -shift), min(len(other), len(reference) - shift)
        if end - begin <= most:
            continue
        agree = int((other[begin:end] == reference[begin + shift : end + shift]).sum())
        if agree > most:
            best, most = shift, agree
    return best
