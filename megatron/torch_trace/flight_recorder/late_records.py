# SPDX-License-Identifier: Apache-2.0
"""Hang records of one hang that were not written at one time.

    rank 0   began    0 s   wrote its record at  30 s
    rank 1   began    0 s   wrote its record at 300 s     its process was stopped, and goes on

What rank 1 called after 30 s says nothing of what rank 0 waits in: rank 0 may have gone on, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from megatron.torch_trace import wording
from megatron.torch_trace.flight_recorder.hang_files import LastHang
from megatron.torch_trace.flight_recorder.joined.blame import Blame, Cause
from megatron.torch_trace.flight_recorder.joined.waiting import Joined
from megatron.torch_trace.flight_recorder.record import Call, FlightRecord
from megatron.torch_trace.format.hang_records import HangRecord
from megatron.torch_trace.wording import ranks as rank_list

_IN_TIME_NS = 30_000_000_000
"""By how much a record may be late: the watch looks every 5 s, and may wait 20 s for torch."""


def late_ranks(last: LastHang) -> dict[int, int]:
    """Ranks that wrote their records long after it was time, and after the others; ns later than
    the first of these.

    Each is measured by its own clock, from the begin of its iteration.
    """
    first = _first_waited(last)
    return {
        rank: _waited(record) - first
        for rank, record in last.records.items()
        if _waited(record) > max(first, _time_ns(record)) + _IN_TIME_NS
    }


def at_one_moment(last: LastHang) -> Iterator[FlightRecord]:
    """Flight records as they were when the first rank wrote its hang record."""
    first = _first_waited(last)
    for flight in last.flights:
        until = last.records[flight.rank].began_ns + first
        calls = _until(flight.calls, until)
        # torch's own counts are those of later.
        yield flight if calls == flight.calls else replace(flight, calls=calls, last_called={})


def as_stopped(blame: Blame, joined: Joined) -> Blame:
    """The blame of a late rank, in what others wait for it, whatever it is blamed for."""
    waits = {r: call for r, call in joined.waiting_for(blame.rank).items() if r != blame.rank}
    if not waits:
        return replace(blame, cause=Cause.STOPPED)
    call = min(waits.values(), key=lambda one: one.created)
    return Blame(blame.rank, Cause.STOPPED, call, tuple(sorted(waits)))


def late_sentence(late: Mapping[int, int]) -> str:
    """`Rank 2 wrote its record 270 s after the others: ...`; empty where no rank is late."""
    if not late:
        return ""
    ranks, one = tuple(sorted(late)), len(late) == 1
    return (
        f"{'Rank' if one else 'Ranks'} {rank_list(ranks)} wrote "
        f"{'its record' if one else 'their records'} {wording.duration(max(late.values()))} after "
        f"the others: until then "
        f"{'its process was' if one else 'the processes were'} stopped, or a thread kept Python's "
        "lock."
    )


def _waited(record: HangRecord) -> int:
    return record.written_ns - record.began_ns


def _first_waited(last: LastHang) -> int:
    in_time = [one for one in last.records.values() if not one.locked]
    return min(_waited(one) for one in in_time or last.records.values())


def _time_ns(record: HangRecord) -> int:
    """When it is time at the latest: faulthandler counts from the moment that a thread takes the
    lock, which may be as late as the end of the flag's time."""
    return int(record.seconds * 1e9) * (2 if record.locked else 1)


def _until(calls: tuple[Call, ...], moment_ns: int) -> tuple[Call, ...]:
    """Calls that were made by then, as far as they were by then."""
    made = [one for one in calls if one.created <= moment_ns]
    if len(made) < len(calls) and made and not made[-1].pending and made[-1].finished is None:
        made.pop()  # of gloo it is not known when a call was complete, but by the next one
    return tuple(
        replace(one, state="started", finished=None)
        if one.finished is not None and one.finished > moment_ns
        else one
        for one in made
    )
