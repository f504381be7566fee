# SPDX-License-Identifier: Apache-2.0
"""Sends and receives: whether the rank at the other end has made its part.

torch numbers transfers by rank, so the numbers of two ranks do not match. The third send from one
rank to another is the third receive of that other from it.
"""

from __future__ import annotations

from collections.abc import Mapping

from megatron.torch_trace.flight_recorder.record import Call, FlightRecord

_SEEN_LATE_NS = 1_000_000_000
"""By how much later than it happens torch may see that a transfer is complete."""


def has_answered(
    records: Mapping[int, FlightRecord], rank: int, other: int, call: Call
) -> bool | None:
    """Whether a rank has made its part of a transfer of another rank.

    None where its record does not tell, because it holds pending calls alone.

    Args:
        records: by rank.
        rank: at one end, not in this transfer now.
        other: at the other end.
        call: pending there.
    """
    if rank not in records:
        return None
    mine, theirs = records[rank], records[other]
    sends = call.name.startswith("send")
    made = [one for one in mine.calls if _is(one, call.group, other, not sends)]
    earlier = [
        one for one in theirs.calls if _is(one, call.group, rank, sends) and one.order < call.order
    ]
    if mine.whole and theirs.whole:
        return len(made) > len(earlier)
    if mine.pending_alone:
        return None
    if not made or not earlier:
        return False if mine.whole or made else None
    last, before = made[-1].finished, earlier[-1].finished
    return last is not None and before is not None and last > before + _SEEN_LATE_NS


def _is(call: Call, group: str, peer: int, sends: bool) -> bool:
    return (
        call.is_transfer
        and call.group == group
        and call.peer == peer
        and call.name.startswith("send") == sends
    )
