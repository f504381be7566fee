# SPDX-License-Identifier: Apache-2.0
"""Ranks at fault, by all signs: the surest ones first, the order of calls where there is no other.

rank 2   waits in all_to_all 11 of group 32      had not called all_gather 23 before
rank 3   waits in all_gather 23 of group 5       the others called their all_gather 23 first
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from megatron.torch_trace.flight_recorder.call_names import call_kind, sized_kind
from megatron.torch_trace.flight_recorder.habits import Unusual, unusual_calls
from megatron.torch_trace.flight_recorder.joined.blame import Blame, Cause
from megatron.torch_trace.flight_recorder.joined.waiting import Joined
from megatron.torch_trace.flight_recorder.record import Call


def ranks_at_fault(joined: Joined) -> tuple[Blame, ...]:
    """Each once, with the surest sign; by rank."""
    found = {one.rank: one for one in joined.surest()}
    if not found:
        # Who waits elsewhere himself is at fault only if nobody else is. Ranks that call one thing
        # differently wait in it: what they never called is what comes of it.
        never = [] if joined.unlike() else _never_called(joined)
        for blame in never or _left_usual_order(joined):
            found.setdefault(blame.rank, blame)
    return tuple(sorted(found.values(), key=lambda one: one.rank))


def _never_called(joined: Joined) -> list[Blame]:
    """The few of a group that never called what most of it waits in.

    Who waits in a transfer may merely wait for one of them.
    """
    found: list[Blame] = []
    by_transfer: list[Blame] = []
    for group in joined.groups.values():
        fronts = joined.fronts(group)
        if not fronts:
            continue
        first = min(fronts.values(), key=lambda one: one.created)
        missing = [
            rank
            for rank in group.ranks
            if rank in joined.records and joined.has_called(rank, first) is False
        ]
        if len(missing) >= len(fronts):
            continue
        for rank in missing:
            if not _has_passed(joined, rank, fronts):
                continue
            waits_in = _first_call(joined, rank)
            blame = Blame(rank, Cause.NEVER_CALLED, first, tuple(sorted(fronts)))
            if waits_in is None or waits_in.is_transfer:
                if waits_in is None or waits_in.peer in fronts:
                    by_transfer.append(blame)
            elif joined.records[rank].pending_alone:
                # The order of others is not in the records: only what is behind tells.
                if _has_called_behind(joined, rank, fronts):
                    found.append(blame)
            elif not _is_usual(joined, waits_in, fronts):
                found.append(blame)
            else:
                found += _the_other_way_round(joined, rank, waits_in, fronts)
    return found or by_transfer


def _the_other_way_round(
    joined: Joined, rank: int, call: Call, fronts: Mapping[int, Call]
) -> Iterable[Blame]:
    """Those that went on without what a rank waits in that keeps the order of most.

    Args:
        joined: all records.
        rank: that keeps the order.
        call: in which it waits.
        fronts: what others wait in, of whom some left the order.
    """
    for other in joined.groups[call.group].ranks:
        if other in fronts and joined.has_called(other, call) is False:
            yield Blame(other, Cause.NEVER_CALLED, call, (rank,))


def _first_call(joined: Joined, rank: int) -> Call | None:
    """In which a rank waits first: a send may wait behind others; None where it waits in none."""
    calls = [one for mine in joined.pending[rank].values() for one in mine]
    calls = [one for one in calls if not one.name.startswith("send")]
    return min(calls, key=lambda one: one.order, default=None)


def _is_usual(joined: Joined, call: Call, fronts: Mapping[int, Call]) -> bool:
    """Whether most of those that wait have made such a call before what they wait in.

    Args:
        joined: all records.
        call: in which a rank waits that has not called what the others wait in.
        fronts: what each of these waits in.
    """
    before = sum(
        any(
            one.order < front.order
            and one.group != front.group
            and _alike(joined, one) == _alike(joined, call)
            for one in joined.collectives(rank)
        )
        for rank, front in fronts.items()
    )
    return 2 * before > len(fronts)


def _alike(joined: Joined, call: Call) -> tuple[str | int, int, str, str]:
    """The same for groups of one kind: each rank calls in its own tensor-parallel group. Of groups
    that nobody described the number of ranks tells."""
    group = joined.groups[call.group]
    return group.description or len(group.ranks), call.sequence, call.name, call.sizes


def _has_passed(joined: Joined, rank: int, waits: Mapping[int, Call]) -> bool:
    """Whether a rank went on without what others wait in, and does not merely come late.

    It waits for them, or has called what they called behind it.
    """
    return joined.circles.reaches(rank, waits) or _has_called_behind(joined, rank, waits)


def _has_called_behind(joined: Joined, rank: int, waits: Mapping[int, Call]) -> bool:
    mine = {(one.group, one.sequence) for one in joined.collectives(rank)}
    return any(
        (one.group, one.sequence) in mine
        for other, call in waits.items()
        for one in joined.collectives(other)
        if one.order > call.order
    )


def _left_usual_order(joined: Joined) -> Iterable[Blame]:
    """Ranks that left their usual order of calls, where the others did not."""
    calls = {
        rank: [call for call in one.calls if call.order >= one.since]
        for rank, one in joined.records.items()
        if not (one.pending_alone or one.overrun)  # others would show what they do alike
    }
    names = {name: group.description for name, group in joined.groups.items()}
    unusual = unusual_calls(calls, names)
    odd = {(rank, one.call.order) for rank, mine in unusual.items() for one in mine}
    usual: dict[tuple[str, int], list[tuple[int, Call]]] = defaultdict(list)
    for rank, mine in calls.items() if unusual else ():
        for call in mine:
            if not call.is_transfer and (rank, call.order) not in odd:
                usual[call.group, call.sequence].append((rank, call))
    unlike = [one for rank, mine in unusual.items() for one in _unlike_others(rank, mine, usual)]
    for blame in unlike:
        # Two that accuse each other: one of them merely met what the other one left.
        if not any(o.rank in blame.waits and blame.rank in o.waits for o in unlike):
            yield blame
    for rank in unusual:
        yield from _left_order(joined, rank, unusual)


def _left_order(
    joined: Joined, rank: int, unusual: Mapping[int, Sequence[Unusual]]
) -> Iterable[Blame]:
    """A rank that went on without what it usually calls there, in which others wait.

    An unusual call that is complete has let the rank go on: it is not why the others wait.
    """
    found = next((one for one in unusual[rank] if one.call.pending), None)
    if found is None:
        return
    call, usual, mine = found.call, found.usual, joined.records[rank].calls
    before = {(one.group, one.sequence) for one in mine if one.order < call.order}
    missed = {
        other: one
        for other, one in joined.waiting_for(rank).items()
        if other not in unusual
        and (one.group, one.sequence) not in before
        and (one.group, one.name) == (usual.group, usual.name)
    }
    if _has_passed(joined, rank, missed):
        words = call_kind(usual, joined.groups)
        yield Blame(rank, Cause.LEFT_ORDER, call, tuple(sorted(missed)), words)


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
        others = {other: one for other, one in theirs if sized_kind(one) != sized_kind(call)}
        if others:
            words = sized_kind(next(iter(others.values())))
            yield Blame(rank, Cause.DIFFERENT, call, tuple(others), words)
