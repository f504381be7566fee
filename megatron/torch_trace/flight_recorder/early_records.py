# SPDX-License-Identifier: Apache-2.0
"""Hang records of a job that was still at work.

A record is written when an iteration lasts longer than the seconds of --torch-profile-on-hang. What
hangs has been pending for about as long, and its rank has called nothing since.
"""

from __future__ import annotations

from megatron.torch_trace import wording
from megatron.torch_trace.flight_recorder.hang_files import LastHang

_YOUNG_NS = 1_000_000_000
"""A rank that called something so short ago is at work, if nothing is pending for longer."""
_PART = 4
"""And it is less than the fourth part of the flag's seconds."""

ADVICE = (
    "Give --torch-profile-on-hang more seconds than the longest iteration takes, the first one "
    "included."
)


def written_at_work(last: LastHang) -> str:
    """The verdict where all ranks were still at work; empty where that is not sure.

    Every rank must have left both of its records, whole: one that did not may be what hangs.
    """
    flights = {one.rank: one for one in last.flights}
    if last.absent or last.damaged or flights.keys() != last.records.keys():
        return ""
    ages = []
    for rank, record in last.records.items():
        flight = flights[rank]
        if flight.damaged or not flight.calls:
            return ""
        created = [call.created for call in flight.pending()]
        since = min(created) if created else max(call.created for call in flight.calls)
        ages.append(record.written_ns - since)
    newest = max(last.records.values(), key=lambda one: one.began_ns)
    most = min(_YOUNG_NS, int(newest.seconds * 1e9) // _PART)
    # torch and Python read the same clock, so none is negative in truth.
    if not 0 <= min(ages) <= max(ages) < most:
        return ""
    return (
        "Nothing hung when the records were written: every rank had called a collective within "
        f"{wording.duration(max(ages))} before, and none was pending for longer. Iteration "
        f"{newest.iteration} merely took longer than the {newest.seconds:g} s of "
        "--torch-profile-on-hang."
    )
