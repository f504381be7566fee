# SPDX-License-Identifier: Apache-2.0
"""Who waits for whom: pending collectives joined over ranks.

    rank 1   all_reduce 41 of group 7 pending     waits for rank 2, which never called it
    rank 2   nothing pending                      is in no collective: its CPU is elsewhere
    rank 3   all_gather 12 of group 9 pending     rank 4 has completed it: rank 3's GPU is stuck
    rank 5   (no file)

A collective completes on no rank before all have called it, but for those in which data goes one
way. A rank that is behind the others of its group has given them what they needed and did not
complete itself, so its own GPU is stuck.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from megatron.torch_trace.flight_recorder.batches import joined_records
from megatron.torch_trace.flight_recorder.call_names import sized_kind
from megatron.torch_trace.flight_recorder.joined.blame import Blame, Cause
from megatron.torch_trace.flight_recorder.joined.circles import Circles
from megatron.torch_trace.flight_recorder.joined.groups import all_groups
from megatron.torch_trace.flight_recorder.joined.reached import ROOTED, Reached
from megatron.torch_trace.flight_recorder.joined.transfers import has_answered
from megatron.torch_trace.flight_recorder.record import Call, FlightRecord, Group


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
        records = joined_records(records)
        self.records = {one.rank: one for one in records}
        self.groups = all_groups(records)
        self._reached = Reached(records, self.groups)
        self.pending: dict[int, dict[str, list[Call]]] = {}
        for one in records:
            by_group: dict[str, list[Call]] = defaultdict(list)
            for call in one.pending():
                by_group[call.group].append(call)
            self.pending[one.rank] = by_group
        self._fronts: dict[str, dict[int, Call]] = {}
        self._groups_of: dict[int, list[Group]] = defaultdict(list)
        for group in self.groups.values():
            for rank in group.ranks:
                self._groups_of[rank].append(group)
        self._transfers_with: dict[int, list[tuple[int, Call]]] = defaultdict(list)
        for rank, mine in self.pending.items():
            for call in (one for calls in mine.values() for one in calls):
                if call.peer is not None:
                    self._transfers_with[call.peer].append((rank, call))
        named = {rank for group in self.groups.values() for rank in group.ranks}
        self.absent = tuple(sorted({*named, *absent} - self.records.keys()))
        self.circles = Circles(
            self.groups,
            self.pending,
            self.fronts,
            self.has_called,
            self._has_answered,
            self._apart,
        )

    @property
    def is_told(self) -> bool:
        """Whether something is pending, all records are whole files, and these list who takes part
        in all that is pending; those of gloo do not."""
        damaged = any(one.damaged for one in self.records.values())
        listed = {
            name
            for one in self.records.values()
            for name, group in one.groups.items()
            if group.ranks
        }
        pending = {name for mine in self.pending.values() for name in mine}
        return bool(pending) and pending <= listed and not damaged

    def surest(self) -> tuple[Blame, ...]:
        """Ranks that others wait for and that wait for nobody, each once, with the surest sign."""
        found: dict[int, Blame] = {}
        for blame in [*self._different(), *self._behind(), *self._elsewhere()]:
            found.setdefault(blame.rank, blame)
        return tuple(found.values())

    def has_called(self, rank: int, call: Call) -> bool | None:
        """Whether a rank has called a collective of another rank; None where it is unknown."""
        return None if self._is_damaged(rank) else self._reached.has_called(rank, call)

    def _has_answered(self, rank: int, other: int, call: Call) -> bool | None:
        return has_answered(self.records, rank, other, call)

    def fronts(self, group: Group) -> dict[int, Call]:
        """The first pending collective of each rank in a group."""
        if (known := self._fronts.get(group.name)) is not None:
            return known
        first = self._fronts[group.name] = {}
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
            kinds = Counter(sized_kind(call) for call in here.values())
            if len(kinds) < 2:
                continue
            (usual, most), (_, second) = kinds.most_common(2)
            for rank, call in here.items():
                if most > second and sized_kind(call) != usual:
                    others = tuple(r for r, c in here.items() if sized_kind(c) == usual)
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
            if len({sized_kind(call) for call in here.values()}) > 1:
                return here
        return by_number[lowest]

    def _behind(self) -> Iterable[Blame]:
        """Ranks that did not complete what others of the group have completed."""
        found: dict[int, Blame] = {}
        for group in self.groups.values():
            fronts = self.fronts(group)
            if len({sized_kind(call) for call in self._met(group, fronts).values()}) > 1:
                continue  # that is why it is not complete
            known: dict[tuple[int, str], tuple[int, ...]] = {}
            for rank, call in fronts.items():
                if call.name in ROOTED:
                    continue  # the rank may wait for one that data comes through
                same = call.sequence, call.name  # thousands of ranks wait in one call
                if same not in known:
                    has_completed = self._reached.has_completed
                    known[same] = tuple(r for r in group.ranks if has_completed(r, call))
                further = known[same]
                if further and (rank not in found or call.order < found[rank].call.order):
                    found[rank] = Blame(rank, Cause.BEHIND, call, further)
        return found.values()

    def _elsewhere(self) -> Iterable[Blame]:
        """Ranks without a file, or with nothing pending, that others wait for."""
        for rank in (*self.absent, *self.records):
            if self.pending.get(rank) or self._is_damaged(rank):
                continue
            waits, unsure = self._waiting_for_idle(rank)
            cause = Cause.NOT_IN_A_COLLECTIVE
            if rank not in self.records:
                cause, waits = Cause.NO_FILE, unsure | waits
            if waits:
                first = min(waits.values(), key=lambda one: one.created)
                yield Blame(rank, cause, first, tuple(sorted(unsure | waits)))

    def unsure(self) -> dict[int, dict[int, Call]]:
        """Ranks with nothing pending of which the records do not tell whether others wait for them:
        with the ranks that may, each with its first call."""
        found = {}
        for rank in self.records:
            if not self.pending.get(rank) and not self._is_damaged(rank):
                waits, unsure = self._waiting_for_idle(rank)
                if unsure and not waits:
                    found[rank] = unsure
        return found

    def _waiting_for_idle(self, rank: int) -> tuple[dict[int, Call], dict[int, Call]]:
        """Ranks that wait for one with nothing pending, and ranks that may, each with its first
        call that does."""
        sure: dict[int, Call] = {}
        unsure: dict[int, Call] = {}
        for other, call in self._pending_with(rank):
            if call.is_transfer:
                knows = self._has_answered(rank, other, call)
            else:
                knows = self.has_called(rank, call)
            if knows is not True:
                (unsure if knows is None else sure).setdefault(other, call)
        return sure, unsure

    def collectives(self, rank: int) -> list[Call]:
        """Collectives that a rank has called, as far as its record tells, by order."""
        return [one for one in self.records[rank].calls if not one.is_transfer]

    def unlike(self) -> tuple[dict[int, Call], ...]:
        """Of each group whose ranks call something different at the same number: these calls."""
        met = [self._met(group, self.fronts(group)) for group in self.groups.values()]
        return tuple(here for here in met if len({sized_kind(call) for call in here.values()}) > 1)

    def _apart(self) -> list[dict[int, str]]:
        return [{r: sized_kind(call) for r, call in here.items()} for here in self.unlike()]

    def _is_damaged(self, rank: int) -> bool:
        """Whether its record may lack just the call that others wait in: it blames nobody."""
        record = self.records.get(rank)
        return record is not None and record.damaged

    def waiting_for(self, rank: int) -> dict[int, Call]:
        """Ranks that are in a call with this one, each with its first call that is."""
        found: dict[int, Call] = {}
        for other, call in self._pending_with(rank):
            found.setdefault(other, call)
        return found

    def _pending_with(self, rank: int) -> Iterable[tuple[int, Call]]:
        """First collectives of others' groups with this rank, then all transfers with it."""
        for group in self._groups_of.get(rank, ()):
            yield from self.fronts(group).items()
        yield from self._transfers_with.get(rank, ())
