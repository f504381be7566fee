# SPDX-License-Identifier: Apache-2.0
"""The same collective call found again on other ranks.

The same call is the same process group and sequence number. Where torch recorded none, it is the
n-th call of the group; a rank whose trace begins or ends a few calls apart from the others' is
shifted against them until the messages agree.

Thousands of ranks with thousands of calls each are millions of rows: nothing here goes row by row,
and only one group at a time is sorted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.communication.call_order import by_number
from megatron.torch_trace.analysis.communication.collectives import (
    SYMMETRIC,
    CollectiveCalls,
    CollectiveKind,
    attribute,
    starts_and_ends,
)
from megatron.torch_trace.analysis.timeline.activity import NONE, Activity
from megatron.torch_trace.analysis.timeline.code_columns import by_code, rows_with
from megatron.torch_trace.analysis.timeline.timeline import Timeline, timeline_of
from megatron.torch_trace.columns.intervals import Ints, ints

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

    All but the times may be narrower integers.
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
        call: number of the call, ascending; like `rank` and `row` of 32 bits.
        rank: position of the rank in the sorted list of ranks.
        row: row of that rank's RankCalls.
        start, end: absolute ns, not aligned.
        symmetric: all ranks leave the call together.
        labels: the (dimension, group, collective) that there are.
        label: code of each call into `labels`.
        rows_of: for each rank, by position, its rows here, ascending, of 32 bits.
    """

    ranks: tuple[int, ...]
    call: npt.NDArray[np.int32]
    rank: npt.NDArray[np.int32]
    row: npt.NDArray[np.int32]
    start: Ints
    end: Ints
    symmetric: npt.NDArray[np.bool_]
    labels: tuple[tuple[str, str, str], ...]
    label: Ints
    rows_of: tuple[npt.NDArray[np.int32], ...]

    def __len__(self) -> int:
        return len(self.call)

    def first_rows(self) -> Ints:
        """The first row of each call."""
        return np.flatnonzero(np.diff(self.call, prepend=-1))


def calls_in(activity: Activity, *, workers: int = 1) -> RankCalls | None:
    """What `match` needs of one rank's trace; None if it holds neither steps nor GPU work."""
    timeline = timeline_of(activity, workers=workers)
    return None if timeline is None else rank_calls(timeline, attribute(timeline))


def rank_calls(timeline: Timeline, calls: CollectiveCalls) -> RankCalls:
    """What `match` needs of one rank, in the order of launch."""
    start, end = starts_and_ends(timeline, calls)
    base = timeline.activity.base_ns
    order = launch_order(timeline, calls)
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


def launch_order(timeline: Timeline, calls: CollectiveCalls) -> Ints:
    """Rows of `calls` in the order of launch, which is that of `rank_calls`."""
    start = timeline.activity.gpu.start[calls.rows]
    launched = timeline.launches.time[calls.rows]
    return ints(np.lexsort((start, np.where(launched < 0, start, launched))))


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
    found = _Found(sum(len(one.rows) for members in groups for one in members))
    for members in groups:
        found.add(members)
    rank, call, label = found.rank[: found.rows], found.call[: found.rows], ints(found.label)
    symmetric = np.array([collective in SYMMETRIC for _, _, collective in found.labels], dtype=bool)
    # Numbers of 16 bits are sorted without comparing them.
    by_rank = np.argsort(rank.astype(np.uint16) if len(order) < 1 << 16 else rank, kind="stable")
    bounds = np.cumsum(np.bincount(rank, minlength=len(order)))[:-1]
    return MatchedCalls(
        ranks=order,
        call=call,
        rank=rank,
        row=found.row[: found.rows],
        start=found.start[: found.rows],
        end=found.end[: found.rows],
        symmetric=by_code(symmetric[label], call) if len(call) else np.zeros(0, dtype=bool),
        labels=tuple(found.labels),
        label=label,
        rows_of=tuple(np.split(by_rank.astype(np.int32), bounds)),
    )


def _members(calls: list[RankCalls]) -> dict[str, list[_Member]]:
    """By group the ranks that have calls in it, ascending."""
    found: dict[str, list[_Member]] = {}
    for position, one in enumerate(calls):
        keys: dict[str, list[int]] = {}
        for code, kind in enumerate(one.kinds):
            if kind.collective not in _UNMATCHED and (kind.group_size or 2) > 1:
                keys.setdefault(kind.key, []).append(code)
        for key, codes in keys.items():
            rows = np.flatnonzero(rows_with(one.kind, codes, len(one.kinds)))
            if len(rows):
                found.setdefault(key, []).append(_Member(position, rows, one))
    return found


class _Found:
    """The columns of `MatchedCalls`, filled group by group.

    Args:
        most: rows that there can be.
    """

    def __init__(self, most: int) -> None:
        self.rows = 0
        self.labels: dict[tuple[str, str, str], int] = {}
        self.label: list[int] = []
        # Numbers of ranks and rows are small, and there are many.
        self.call, self.rank, self.row = (np.empty(most, dtype=np.int32) for _ in range(3))
        self.start, self.end = (np.empty(most, dtype=np.int64) for _ in range(2))

    def add(self, members: list[_Member]) -> None:
        """Match the calls of one group."""
        order, first = by_number(_numbers(members))
        sizes = np.diff(np.append(first, len(order)))
        several = sizes > 1
        kept = order[np.repeat(several, sizes)]
        here = slice(self.rows, self.rows + len(kept))
        self.rows = here.stop
        numbered = np.arange(len(self.label), len(self.label) + int(several.sum()))
        self.call[here] = np.repeat(numbered, sizes[several])
        self.label += _labels(members, self.labels)[order[first[several]]].tolist()
        lengths = [len(one.rows) for one in members]
        self.rank[here] = np.repeat(ints([one.position for one in members]), lengths)[kept]
        self.row[here] = np.concatenate([one.rows for one in members])[kept]
        self.start[here] = np.concatenate([one.calls.start[one.rows] for one in members])[kept]
        self.end[here] = np.concatenate([one.calls.end[one.rows] for one in members])[kept]


def _labels(members: list[_Member], labels: dict[tuple[str, str, str], int]) -> Ints:
    """Code of each row's label."""
    found = []
    for one in members:
        of_kind = [
            labels.setdefault((kind.dimension, kind.group, kind.collective), len(labels))
            for kind in one.calls.kinds
        ]
        found.append(ints(of_kind)[one.calls.kind[one.rows]])
    return np.concatenate(found)


def _numbers(members: list[_Member]) -> list[Ints]:
    """Each call's number in its group: torch's own, where every call has one."""
    own = [one.calls.seq[one.rows] for one in members]
    if not any((seq == NONE).any() for seq in own):
        return own
    signatures = _signatures(members)
    reference = max(signatures, key=len)
    shifts: dict[bytes, int] = {}
    found = []
    for one in signatures:
        shift = shifts.get(one.tobytes())
        if shift is None:
            # Most ranks of a group do the same.
            shift = shifts[one.tobytes()] = _shift(reference, one)
        found.append(np.arange(shift, shift + len(one)))
    return found


def _signatures(members: list[_Member]) -> list[Ints]:
    """A code for what each call is and how large; the same code on all ranks."""
    names: dict[str, int] = {}
    columns = []
    for one in members:
        of_kind = ints([names.setdefault(kind.collective, len(names)) for kind in one.calls.kinds])
        collective = of_kind[one.calls.kind[one.rows]]
        # All-to-all exchanges other amounts on every rank.
        exchanges = collective == names.get("all_to_all", NONE)
        elements = np.where(exchanges, 0, one.calls.elements[one.rows])
        columns.append(np.stack((collective, elements)))
    code = np.unique(np.concatenate(columns, axis=1), axis=1, return_inverse=True)[1].ravel()
    return np.split(code, np.cumsum([column.shape[1] for column in columns])[:-1])


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
