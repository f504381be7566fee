# SPDX-License-Identifier: Apache-2.0
"""Who waits for whom: pending collectives joined over ranks.

    rank 1   all_reduce 41 of group 7 pending     waits for rank 2, which never called it
    rank 2   nothing pending                      is in no collective: its CPU is elsewhere
    rank 3   all_gather 12 of group 9 pending     rank 4 has completed it: rank 3's GPU is stuck
    rank 5   (no file)

A collective completes on no rank before all have called it. A rank that is behind the others of its
group has given them what they needed and did not complete itself, so its own GPU is stuck.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from megatron.torch_trace.flight_recorder.call_names import call_kind
from megatron.torch_trace.flight_recorder.habits import Unusual, unusual_calls
from megatron.torch_trace.flight_recorder.reached import Reached
from megatron.torch_trace.flight_recorder.record import Call, FlightRecord, Group


class Cause(Enum):
    """Why a rank is at fault; the value is the word in JSON."""

    NO_FILE = "no_file"
    NOT_IN_A_COLLECTIVE = "not_in_a_collective"
    BEHIND = "gpu_stuck"
    DIFFERENT = "different_call"
    NEVER_CALLED = "never_called"
    LEFT_ORDER = "left_usual_order"


@dataclass(frozen=True, slots=True)
class Blame:
    """A rank that others wait for, by itself.

    Args:
        rank: global rank.
        cause: how it is known.
        call: the call that shows it: of the rank where it is BEHIND, DIFFERENT or LEFT_ORDER,
            else of a rank that waits.
        waits: the ranks that wait in this call.
        usual: of DIFFERENT, what most ranks called instead; of LEFT_ORDER, what the rank usually
            calls there.
    """

    rank: int
    cause: Cause
    call: Call
    waits: tuple[int, ...]
    usual: str = ""


class Joined:
    """Records of all ranks, joined.

    Args:
        records: one a rank.
        absent: ranks that have left nothing, beside those that groups name.

    Attributes:
        groups: all groups that any record knows, with all ranks that are known of each.
        pending: rank -> group -> its pending calls, by order.
        absent: ranks that groups name and that left no file.
    """

    def __init__(self, records: Sequence[FlightRecord], absent: Sequence[int] = ()) -> None:
        self.records = {one.rank: one for one in records}
        self.groups = _all_groups(records)
        self._reached = Reached(records)
        self.pending: dict[int, dict[str, list[Call]]] = {}
        for one in records:
            by_group: dict[str, list[Call]] = defaultdict(list)
            for call in one.pending():
                by_group[call.group].append(call)
            self.pending[one.rank] = by_group
        named = {rank for group in self.groups.values() for rank in group.ranks}
        self.absent = tuple(sorted({*named, *absent} - self.records.keys()))

    def blames(self) -> tuple[Blame, ...]:
        """Ranks at fault, each once, with the surest sign; by rank."""
        found: dict[int, Blame] = {}
        for blame in [*self._different(), *self._behind(), *self._elsewhere()]:
            found.setdefault(blame.rank, blame)
        if not found:
            # Who waits elsewhere himself is at fault only if nobody else is. Ranks that call one
            # thing differently wait in it: what they never called is what comes of it.
            never = [] if self.unlike() else [*self._never()]
            for blame in never or self._unusual():
                found.setdefault(blame.rank, blame)
        return tuple(sorted(found.values(), key=lambda one: one.rank))

    def fronts(self, group: Group) -> dict[int, Call]:
        """The first pending collective of each rank in a group."""
        first = {}
        for rank in group.ranks:
            mine = self.pending.get(rank, {}).get(group.name, ())
            calls = [one for one in mine if not one.is_transfer]
            if calls:
                first[rank] = min(calls, key=lambda one: one.sequence)
        return first

    def _different(self) -> Iterable[Blame]:
        """Ranks that call another collective, or another size, than most at the same number."""
        for group in self.groups.values():
            fronts = self.fronts(group)
            here = self._met(group, fronts)
            kinds = Counter(_kind(call) for call in here.values())
            if len(kinds) < 2:
                continue
            (usual, most), (_, second) = kinds.most_common(2)
            for rank, call in here.items():
                if most > second and _kind(call) != usual:
                    others = tuple(r for r, c in here.items() if _kind(c) == usual)
                    yield Blame(rank, Cause.DIFFERENT, call, others, usual)

    def _met(self, group: Group, fronts: dict[int, Call]) -> dict[int, Call]:
        """The first collective of a group that ranks call differently, else the first pending one:
        on all ranks that have called it.

        One with different sizes may be complete, and the group hangs in a later one.
        """
        lowest = min((call.sequence for call in fronts.values()), default=None)
        if lowest is None:
            return {}
        by_number: dict[int, dict[int, Call]] = defaultdict(dict)
        for rank in group.ranks:
            for call in self.records[rank].calls if rank in self.records else ():
                if call.group == group.name and not call.is_transfer and call.sequence <= lowest:
                    by_number[call.sequence][rank] = call
        for _, here in sorted(by_number.items()):
            if len({_kind(call) for call in here.values()}) > 1:
                return here
        return by_number[lowest]

    def _behind(self) -> Iterable[Blame]:
        """Ranks that did not complete what others of the group have completed."""
        found: dict[int, Blame] = {}
        for group in self.groups.values():
            fronts = self.fronts(group)
            if len({_kind(call) for call in self._met(group, fronts).values()}) > 1:
                continue  # that is why it is not complete
            for rank, call in fronts.items():
                further = tuple(r for r in group.ranks if self._is_ahead(r, fronts.get(r), call))
                if further and (rank not in found or call.order < found[rank].call.order):
                    found[rank] = Blame(rank, Cause.BEHIND, call, further)
        return found.values()

    def _is_ahead(self, rank: int, front: Call | None, call: Call) -> bool:
        """Whether a rank, with its first pending call of the group, has completed this one."""
        if front is not None:
            return front.sequence > call.sequence
        return self._reached.has_completed(rank, call)

    def _elsewhere(self) -> Iterable[Blame]:
        """Ranks without a file, or with nothing pending, that others wait for."""
        for rank in (*self.absent, *self.records):
            if self.pending.get(rank) or self._is_damaged(rank):
                continue
            cause = Cause.NOT_IN_A_COLLECTIVE if rank in self.records else Cause.NO_FILE
            waits = self._waiting_for(rank, unless_called=True)
            if waits:
                first = min(waits.values(), key=lambda one: one.created)
                yield Blame(rank, cause, first, tuple(sorted(waits)))

    def _never(self) -> Iterable[Blame]:
        """The few of a group that never called what most of it waits in."""
        for group in self.groups.values():
            fronts = self.fronts(group)
            if not fronts:
                continue
            first = min(fronts.values(), key=lambda one: one.created)
            missing = [
                rank
                for rank in group.ranks
                if rank in self.records
                and not self._is_damaged(rank)
                and not self._reached.has_called(rank, first)
            ]
            if len(missing) < len(fronts):
                for rank in missing:
                    yield Blame(rank, Cause.NEVER_CALLED, first, tuple(sorted(fronts)))

    def _unusual(self) -> Iterable[Blame]:
        """Ranks that left their usual order of calls, where the others did not."""
        calls = {rank: one.calls for rank, one in self.records.items()}
        names = {name: group.description for name, group in self.groups.items()}
        unusual = unusual_calls(calls, names)
        odd = {(rank, one.call.order) for rank, mine in unusual.items() for one in mine}
        usual: dict[tuple[str, int], list[tuple[int, Call]]] = defaultdict(list)
        for rank, mine in calls.items() if unusual else ():
            for call in mine:
                if not call.is_transfer and (rank, call.order) not in odd:
                    usual[call.group, call.sequence].append((rank, call))
        for rank, found in unusual.items():
            yield from _unlike_others(rank, found, usual)
            yield from self._left_order(rank, unusual)

    def _left_order(self, rank: int, unusual: Mapping[int, Sequence[Unusual]]) -> Iterable[Blame]:
        """A rank that went on without what others wait in, which did not leave their order.

        An unusual call that is complete has let the rank go on: it is not why the others wait.
        """
        found = next((one for one in unusual[rank] if one.call.pending), None)
        if found is None:
            return
        call, mine = found.call, self.records[rank].calls
        before = {(one.group, one.sequence) for one in mine if one.order < call.order}
        waits = self._waiting_for(rank).items()
        missed = [
            other
            for other, one in waits
            if other not in unusual and (one.group, one.sequence) not in before
        ]
        if missed:
            words = call_kind(found.usual, self.groups)
            yield Blame(rank, Cause.LEFT_ORDER, call, tuple(sorted(missed)), words)

    def unlike(self) -> tuple[dict[int, Call], ...]:
        """Of each group whose ranks call something different at the same number: these calls."""
        met = [self._met(group, self.fronts(group)) for group in self.groups.values()]
        return tuple(here for here in met if len({_kind(call) for call in here.values()}) > 1)

    def _is_damaged(self, rank: int) -> bool:
        """Whether its record may lack just the call that others wait in: it blames nobody."""
        record = self.records.get(rank)
        return record is not None and record.damaged

    def _waiting_for(self, rank: int, *, unless_called: bool = False) -> dict[int, Call]:
        """Ranks that wait for this one, each with its first call that does.

        Args:
            rank: which.
            unless_called: leave out collectives whose number this rank has come to.
        """
        found: dict[int, Call] = {}
        for group in self.groups.values():
            if rank in group.ranks:
                for other, call in self.fronts(group).items():
                    if not (unless_called and self._reached.has_called(rank, call)):
                        found.setdefault(other, call)
        for other, groups in self.pending.items():
            for calls in groups.values():
                for call in calls:
                    if call.peer == rank:
                        found.setdefault(other, call)
        return found


def _unlike_others(
    rank: int,
    found: Iterable[Unusual],
    usual: Mapping[tuple[str, int], Sequence[tuple[int, Call]]],
) -> Iterable[Blame]:
    """Unusual calls of a rank that others call in another way, as they usually do.

    Args:
        rank: that has made them.
        found: these calls.
        usual: collectives that are not unusual, by group and number: with their ranks.
    """
    for call in (one.call for one in found if not one.call.is_transfer):
        theirs = usual.get((call.group, call.sequence), ())
        others = {other: one for other, one in theirs if _kind(one) != _kind(call)}
        if others:
            words = _kind(next(iter(others.values())))
            yield Blame(rank, Cause.DIFFERENT, call, tuple(others), words)


def _kind(call: Call) -> str:
    return f"{call.name} {call.sizes}".strip() if call.name in _EQUAL_SIZES else call.name


_EQUAL_SIZES = {"all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast", "all_gather"}
"""Collectives whose sizes must be the same on all ranks; all-to-all may differ."""


def _all_groups(records: Sequence[FlightRecord]) -> dict[str, Group]:
    """Groups by name; where no record lists the ranks, those that called it."""
    found: dict[str, Group] = {}
    callers: dict[str, set[int]] = defaultdict(set)
    for record in records:
        for call in record.calls:
            callers[call.group].add(record.rank)
        for group in record.groups.values():
            old = found.get(group.name)
            if old is None or len(old.ranks) < len(group.ranks):
                found[group.name] = group
    return {
        name: Group(name, one.description, one.ranks or tuple(sorted(callers[name])))
        for name, one in found.items()
    }
