# SPDX-License-Identifier: Apache-2.0
"""Ranks that wait for each other in a circle: somebody in it has left the order of calls.

    rank 3   waits in all_reduce 4 of group 9 for rank 2
    rank 2   waits in all_reduce 6 of group 0 for rank 3

A rank that waits for others, and that these do not wait for, came late for a reason elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from megatron.torch_trace.flight_recorder.record import Call, Group


class Circles:
    """Who waits for whom.

    Args:
        groups: by name.
        pending: rank -> group -> its pending calls.
        fronts: the first pending collective of each rank in a group.
        has_called: whether a rank has called a collective; None where it is unknown.
        has_answered: whether a rank has made its part of a transfer of another one; None where it
            is unknown.
        apart: ranks of a group that call something different at the same number: by rank, what.
    """

    def __init__(
        self,
        groups: Mapping[str, Group],
        pending: Mapping[int, Mapping[str, Sequence[Call]]],
        fronts: Callable[[Group], Mapping[int, Call]],
        has_called: Callable[[int, Call], bool | None],
        has_answered: Callable[[int, int, Call], bool | None],
        apart: Callable[[], Sequence[Mapping[int, str]]],
    ) -> None:
        self._groups = groups
        self._pending = pending
        self._fronts = fronts
        self._has_called = has_called
        self._has_answered = has_answered
        self._apart = apart
        self._known: dict[int, frozenset[int]] = {}

    def reaches(self, rank: int, others: Collection[int]) -> bool:
        """Whether a rank waits for one of others, or for one that waits for one of them, ..."""
        seen: set[int] = set()
        left = [rank]
        while left:
            for other in self._waits_for(left.pop()) - seen:
                if other in others:
                    return True
                seen.add(other)
                left.append(other)
        return False

    def one(self) -> list[tuple[int, Call, int]]:
        """A circle of ranks that wait in collectives: a rank, in what, and for whom; or nothing."""
        for begin in self._pending:
            way: dict[int, tuple[int, Call, int]] = {}
            at: int | None = begin
            while at is not None and at not in way:
                step = next(self._in_collectives(at), None)
                if step is not None:
                    way[at] = at, *step
                at = step and step[1]
            if at is not None:
                steps = [*way.values()]
                return steps[[*way].index(at) :]
        return []

    def _in_collectives(self, rank: int) -> Iterator[tuple[Call, int]]:
        """In what a rank waits, and for whom: what it called first, first."""
        groups = [self._groups[name] for name in self._pending.get(rank, {})]
        fronts = [call for group in groups if (call := self._fronts(group).get(rank))]
        for call in sorted(fronts, key=lambda one: one.order):
            for other in self._groups[call.group].ranks:
                if self._has_called(other, call) is False:
                    yield call, other

    def _waits_for(self, rank: int) -> frozenset[int]:
        if rank not in self._known:
            self._known[rank] = frozenset(self._found(rank))
        return self._known[rank]

    def _found(self, rank: int) -> Iterator[int]:
        for here in self._apart():
            yield from (one for one in here if rank in here and here[one] != here[rank])
        yield from (other for _, other in self._in_collectives(rank))
        for calls in self._pending.get(rank, {}).values():
            for transfer in calls:
                peer = transfer.peer
                if peer is None or self._meets(peer, rank, transfer):
                    continue
                if self._has_answered(peer, rank, transfer) is False:
                    yield peer

    def _meets(self, peer: int, rank: int, transfer: Call) -> bool:
        """Whether the other end is in the same transfer, as it seems."""
        theirs = self._pending.get(peer, {}).get(transfer.group, ())
        sends = transfer.name.startswith("send")
        return any(one.peer == rank and one.name.startswith("send") != sends for one in theirs)
