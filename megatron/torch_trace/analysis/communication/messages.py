# SPDX-License-Identifier: Apache-2.0
"""Sends and receives: which one of which rank belongs to which of another.

    rank 0   send to 2       [send to 2, receive from 2]       one kernel may do several
    rank 2   receive from 0  [send to 0, receive from 0]

NCCL keeps the order of messages from one rank to another within a group, so the n-th send from a to
b is the n-th receive of b from a. A rank whose trace begins or ends with other messages than its
partner's is shifted until the sizes agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.communication.collectives import (
    Coalesced,
    CollectiveCalls,
    Groups,
    canonical,
)
from megatron.torch_trace.analysis.timeline.activity import NONE, Activity, Collective
from megatron.torch_trace.analysis.timeline.timeline import Timeline, nesting_of
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.communication_names import is_coalesced_range
from megatron.torch_trace.format.json_text import value_of

SEND, RECEIVE = "send", "recv"
_MESSAGES = frozenset({SEND, RECEIVE, "send_recv"})
_MOST_SHIFT = 4


@dataclass(frozen=True, slots=True)
class Message:
    """One send or receive of one rank.

    Args:
        row: row of `activity.gpu` of the kernel that does it.
        way: SEND or RECEIVE.
        group: identity of the process group over ranks.
        peer: global rank of the other end; None if the trace does not tell.
        elements: size.
    """

    row: int
    way: str
    group: str
    peer: int | None
    elements: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message with both ends.

    Args:
        sender, receiver: global ranks.
        send, receive: rows of `activity.gpu` there.
        elements: size.
    """

    sender: int
    receiver: int
    send: int
    receive: int
    elements: int


def messages_of(timeline: Timeline, calls: CollectiveCalls, rank: int) -> list[Message]:
    """Sends and receives of one rank, in the order of launch."""
    activity, launches = timeline.activity, timeline.launches
    wanted = [code for code, kind in enumerate(calls.kinds) if kind.collective in _MESSAGES]
    rows = calls.rows[np.isin(calls.kind, wanted)]
    rows = rows[np.argsort(launches.time[rows], kind="stable")]
    if not len(rows):
        return []
    groups = Groups(activity)
    ops = activity.ops
    comms = (ops.collective != NONE) & activity.named(ops, lambda name: name == _COMMS)
    coalesced = Coalesced(activity, comms)
    track, time = launches.track[rows], launches.time[rows]
    ranges = activity.named(ops, is_coalesced_range) & ops.annotation
    span = nesting_of(ops, ranges).innermost(track, time)
    operator = nesting_of(ops, comms).innermost(track, time)
    found = []
    for row, around, op in zip(rows.tolist(), span.tolist(), operator.tolist(), strict=True):
        members = _members(activity, coalesced, row, around, op)
        found += [_message(row, member, groups, rank) for member in members]
    return found


_COMMS = "record_param_comms"


def _members(
    activity: Activity, coalesced: Coalesced, row: int, span: int, op: int
) -> list[Collective]:
    own = int(activity.gpu.collective[row])
    if span != NONE:
        pairs = [one for one in coalesced.before(span) if canonical(one.name) in (SEND, RECEIVE)]
        if pairs:
            return pairs
    # The operator tells the peer; kernels have it from newer versions of torch only.
    codes = [int(activity.ops.collective[op])] if op != NONE else []
    known = [activity.collectives[code] for code in [*codes, own] if code != NONE]
    return [one for one in known if canonical(one.name) in (SEND, RECEIVE)][:1]


def _message(row: int, one: Collective, groups: Groups, rank: int) -> Message:
    way = canonical(one.name)
    kind, message = groups.call(one)
    peer = one.dst_rank if way == SEND else one.src_rank
    if peer is None:
        peer = _other(groups.members.get(one.group_name or "") or one.group_ranks or "", rank)
    return Message(row, way, kind.key, peer, message.elements)


def _other(members: str, rank: int) -> int | None:
    """The other member of a group of two."""
    try:
        ranks = value_of(members)
    except ValueError:
        return None
    others = [one for one in ranks if one != rank] if isinstance(ranks, list) else []
    return others[0] if len(others) == 1 and isinstance(others[0], int) else None


def deliveries(ranks: Mapping[int, list[Message]]) -> tuple[Delivery, ...]:
    """Sends with their receives, of which both ends are among `ranks`."""
    ends: dict[tuple[str, int, int], dict[str, list[Message]]] = {}
    for rank, messages in ranks.items():
        for one in messages:
            if one.peer is None:
                continue
            pair = (rank, one.peer) if one.way == SEND else (one.peer, rank)
            ends.setdefault((one.group, *pair), {}).setdefault(one.way, []).append(one)
    found = []
    for (_, sender, receiver), ways in ends.items():
        sends, receives = ways.get(SEND, []), ways.get(RECEIVE, [])
        shift = _shift(_sizes(sends), _sizes(receives))
        for number, send in enumerate(sends):
            at = number - shift
            if 0 <= at < len(receives):
                receive = receives[at]
                found.append(Delivery(sender, receiver, send.row, receive.row, send.elements))
    return tuple(found)


def _sizes(messages: list[Message]) -> Ints:
    return ints([one.elements for one in messages])


def _shift(sends: Ints, receives: Ints) -> int:
    """By how many messages the sends begin before the receives: that with the most equal sizes."""
    if np.array_equal(sends, receives):
        return 0
    best, most = 0, -1
    for shift in sorted(range(-_MOST_SHIFT, _MOST_SHIFT + 1), key=abs):
        begin, end = max(0, shift), min(len(sends), len(receives) + shift)
        if end <= begin:
            continue
        agree = int((sends[begin:end] == receives[begin - shift : end - shift]).sum())
        if agree > most:
            best, most = shift, agree
    return best
