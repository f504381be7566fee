# SPDX-License-Identifier: Apache-2.0
"""Calls that were made as one batch, such as `batch_isend_irecv` of a pipeline.

    86676  send 0->3    scheduled     torch never learns more of it
    86677  recv 0<-3    scheduled
    86678  coalesced    completed     tells how far both of them are

torch records each call of a batch, and behind them a call that closes it. Only that one has a state
that changes: those in the batch stay scheduled for ever, also where they are long complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from megatron.torch_trace.flight_recorder.record import COMPLETED, LEFT_OUT, Call, FlightRecord

_CLOSES = re.compile(r"(\w+_)?coalesced")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A call as torch has written it.

    Args:
        call: with the number of its own kind.
        collective: how many collectives of the group had been called.
        transfers: how many transfers, or batches of them; None before torch 2.4, which has one
            number for both.
    """

    call: Call
    collective: int
    transfers: int | None


def in_batches(calls: Sequence[Recorded]) -> list[Call]:
    """Calls with the state of their batch, without those that close a batch; by order.

    A transfer of which nothing tells whether a batch was closed is LEFT_OUT.

    Args:
        calls: of one rank, by order.
    """
    found = {one.call.order: one.call for one in calls}
    open_: dict[str, list[Recorded]] = {}
    for one in calls:
        call = one.call
        mine = open_.setdefault(call.group, [])
        if not _CLOSES.fullmatch(call.name) or call.sizes:
            mine.append(one)
            continue
        batch = [other for other in mine if other.call.pending and _is_in(other, one)]
        open_[call.group] = []
        transfers = [other.call for other in batch if other.call.is_transfer]
        collectives = [other.call for other in batch if not other.call.is_transfer]
        for member in transfers:
            found[member.order] = replace(
                member, state=call.state, finished=call.finished, batch=call.order
            )
        if collectives and not transfers:
            found[call.order] = _as_one(call, collectives)
            for member in collectives:
                del found[member.order]
        elif transfers or (one.transfers and not collectives and call.name == "coalesced"):
            del found[call.order]
    behind = _before_a_gap(calls)
    return [
        replace(call, batch=LEFT_OUT)
        if call.is_transfer and call.pending and call.batch is None and order in behind
        else call
        for order, call in sorted(found.items())
    ]


def _is_in(one: Recorded, closing: Recorded) -> bool:
    """Whether a call is in the batch that another one closes."""
    if one.call.is_transfer:
        return closing.transfers is None or one.transfers == closing.transfers
    return one.collective == closing.collective


def _as_one(closing: Call, members: Sequence[Call]) -> Call:
    """A batch of collectives, as one collective."""
    names = {one.name for one in members}
    return replace(
        closing,
        name=names.pop() if len(names) == 1 else closing.name,
        sizes=" + ".join(one.sizes for one in members),
        stack=closing.stack or members[-1].stack,
    )


def _before_a_gap(calls: Sequence[Recorded]) -> set[int]:
    """Orders of transfers whose batch has calls left out behind it, or nothing at all."""
    found: set[int] = set()
    batch: list[int] = []
    for one, following in pairwise([*calls, None]):
        assert one is not None
        if one.call.is_transfer:
            batch.append(one.call.order)
        if following is None or following.call.order != one.call.order + 1:
            found.update(batch)
        if (
            following is None
            or not following.call.is_transfer
            or following.call.order != one.call.order + 1
            or (following.call.group, following.transfers) != (one.call.group, one.transfers)
        ):
            batch = []
    return found


def since(calls: Sequence[Recorded]) -> int:
    """The order from which on no call is missing."""
    orders = [one.call.order for one in calls]
    gaps = [after for before, after in pairwise(orders) if after != before + 1]
    return max(gaps, default=orders[0] if orders else 0)


def joined_records(records: Sequence[FlightRecord]) -> list[FlightRecord]:
    """Records with what only the records of other ranks tell.

    A transfer is complete if the call that closed its batch is left out: that a group makes batches
    is seen on any rank, by a batch that is closed there, or by two transfers with one number. That
    records hold pending calls alone is seen on a rank that lacks calls, if none is complete on any.
    A record without calls is whole otherwise.

    Args:
        records: of all ranks of a job.
    """
    batched = {name for record in records for name in _batched(record)}
    sound = [one for one in records if one.calls and not one.damaged]
    none_complete = all(call.pending for one in records for call in one.calls)
    alone = none_complete and not all(one.whole for one in sound)
    return [
        replace(
            record,
            calls=tuple(_closed(record, batched)),
            whole=record.whole or not (record.calls or alone),
            pending_alone=alone,
            overrun=_overrun(record, alone=alone),
        )
        for record in records
    ]


_MOST_PENDING = 1000
"""Fewer than torch keeps, by its default."""


def _overrun(record: FlightRecord, *, alone: bool) -> bool:
    """Whether what was called before the first call of a record may be pending, too."""
    if record.whole or not record.calls or not record.calls[0].pending:
        return False
    return not alone or len(record.calls) > _MOST_PENDING


def _batched(record: FlightRecord) -> Iterable[str]:
    """What identifies groups of a record that make batches of transfers."""
    last: dict[str, int] = {}
    for call in record.calls:
        if call.is_transfer:
            closed = call.batch is not None and call.batch != LEFT_OUT
            if closed or last.get(call.group) == call.sequence:
                yield _alike(record, call)
            last[call.group] = call.sequence


def _alike(record: FlightRecord, call: Call) -> str:
    """The same for the pipelines of all ranks, which have groups of their own."""
    return record.groups[call.group].description or call.group


def _closed(record: FlightRecord, batched: set[str]) -> Iterable[Call]:
    done = [one for one in record.calls if not one.pending and one.batch is None]
    for call in record.calls:
        # At the end of a record with complete calls, the one that closes would be there.
        left_out = call.batch == LEFT_OUT and (not done or call.order < done[-1].order)
        if left_out and _alike(record, call) in batched:
            yield replace(call, state=COMPLETED)
        else:
            yield call
