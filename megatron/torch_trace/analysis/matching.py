# SPDX-License-Identifier: Apache-2.0
"""The same collective call found again on other ranks.

The same call is the same process group and sequence number. Where torch recorded none, it is the
n-th call of the group; a rank whose trace begins or ends a few calls apart from the others' is
shifted against them until the messages agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.collectives import (
    SYMMETRIC,
    CollectiveCalls,
    CollectiveKind,
    starts_and_ends,
)
from megatron.torch_trace.analysis.intervals import Ints, ints
from megatron.torch_trace.analysis.timeline import Timeline

_MOST_SHIFT = 16


@dataclass(frozen=True, slots=True)
class RankCalls:
    """Collective calls of one rank, as other ranks need to see them.

    Args:
        start, end: absolute, ns since the epoch where the trace tells it.
        kind: codes into `kinds`.
        kinds: what the codes mean.
        step: number of the step that launched it, -1 if unknown.
    """

    start: Ints
    end: Ints
    kind: Ints
    kinds: tuple[CollectiveKind, ...]
    step: Ints


@dataclass(frozen=True, slots=True)
class MatchedCalls:
    """Calls that at least two ranks have, one row for each rank of each call.

    Args:
        call: number of the call, ascending.
        rank: position of the rank in the sorted list of ranks.
        row: row of that rank's RankCalls.
        start, end: absolute ns, not aligned.
        symmetric: all ranks leave the call together.
        labels: for each call, (dimension, group, collective).
    """

    ranks: tuple[int, ...]
    call: Ints
    rank: Ints
    row: Ints
    start: Ints
    end: Ints
    symmetric: np.ndarray
    labels: tuple[tuple[str, str, str], ...]

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
    )


def match(ranks: Mapping[int, RankCalls]) -> MatchedCalls:
    """Match calls over ranks; sends and receives are between two ranks only and left out."""
    order = tuple(sorted(ranks))
    groups: dict[str, dict[int, list[int]]] = defaultdict(dict)
    for position, rank in enumerate(order):
        calls = ranks[rank]
        keys: dict[int, str] = {}
        for code, kind in enumerate(calls.kinds):
            if (
                kind.collective not in ("send", "recv", "send_recv", "unknown")
                and (kind.group_size or 2) > 1
            ):
                keys[code] = kind.key
        for row, code in enumerate(calls.kind.tolist()):
            if code in keys:
                groups[keys[code]].setdefault(position, []).append(row)
    found: list[tuple[int, int, int]] = []
    labels: list[tuple[str, str, str]] = []
    symmetric: list[bool] = []
    for members in groups.values():
        if len(members) < 2:
            continue
        numbered = _numbered(members, [ranks[rank] for rank in order])
        by_call: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for position, numbers in numbered.items():
            for number, row in numbers.items():
                by_call[number].append((position, row))
        for _, rows in sorted(by_call.items()):
            if len(rows) < 2:
                continue
            position, row = rows[0]
            kind = ranks[order[position]].kinds[int(ranks[order[position]].kind[row])]
            found += [(len(labels), p, r) for p, r in rows]
            labels.append((kind.dimension, kind.group, kind.collective))
            symmetric.append(kind.collective in SYMMETRIC)
    table = ints(found).reshape(-1, 3)
    calls_of, ranks_of, rows_of = table[:, 0], table[:, 1], table[:, 2]
    return MatchedCalls(
        ranks=order,
        call=calls_of,
        rank=ranks_of,
        row=rows_of,
        start=_gather(ranks, order, ranks_of, rows_of, "start"),
        end=_gather(ranks, order, ranks_of, rows_of, "end"),
        symmetric=np.array(symmetric, dtype=bool)[calls_of],
        labels=tuple(labels),
    )


def _gather(
    ranks: Mapping[int, RankCalls], order: tuple[int, ...], rank: Ints, row: Ints, column: str
) -> Ints:
    values = np.zeros(len(rank), dtype=np.int64)
    for position, number in enumerate(order):
        mine = rank == position
        values[mine] = getattr(ranks[number], column)[row[mine]]
    return values


def _numbered(
    members: dict[int, list[int]], calls: list[RankCalls]
) -> dict[int, dict[tuple[int, int], int]]:
    """For each rank, (number of the call, how many-th with that number) -> row."""
    sequences = {}
    for position, rows in members.items():
        one = calls[position]
        seqs = [one.kinds[int(one.kind[row])].seq for row in rows]
        if any(seq is None for seq in seqs):
            return _by_position(members, calls)
        counted: dict[int, int] = defaultdict(int)
        numbers = {}
        for seq, row in zip(seqs, rows, strict=True):
            assert seq is not None
            numbers[seq, counted[seq]] = row
            counted[seq] += 1
        sequences[position] = numbers
    return sequences


def _by_position(
    members: dict[int, list[int]], calls: list[RankCalls]
) -> dict[int, dict[tuple[int, int], int]]:
    signatures = {
        position: [_signature(calls[position], row) for row in rows]
        for position, rows in members.items()
    }
    reference = max(members, key=lambda position: (len(members[position]), -position))
    result = {}
    for position, rows in members.items():
        shift = _shift(signatures[reference], signatures[position])
        result[position] = {(n + shift, 0): row for n, row in enumerate(rows)}
    return result


def _signature(calls: RankCalls, row: int) -> tuple[str, int]:
    kind = calls.kinds[int(calls.kind[row])]
    # All-to-all exchanges other amounts on every rank.
    return kind.collective, 0 if kind.collective == "all_to_all" else kind.elements


def _shift(reference: list[tuple[str, int]], other: list[tuple[str, int]]) -> int:
    """How far `other` begins behind `reference`: the shift with the most messages that agree."""
    if reference == other:
        return 0
    best, most = 0, -1
    longest = max(len(reference) - len(other), 0) + _MOST_SHIFT
    for shift in sorted(range(-_MOST_SHIFT, longest + 1), key=abs):
        agree = sum(
            1
            for n, signature in enumerate(other)
            if 0 <= n + shift < len(reference) and reference[n + shift] == signature
        )
        if agree > most:
            best, most = shift, agree
    return best
