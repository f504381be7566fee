# SPDX-License-Identifier: Apache-2.0
"""What the thread that trains did in an iteration that is measured on the GPU.

The thread launches work, and the GPU comes to it later: the thread has a lead. Where it then takes
long over something, it works, or it has only waited for the GPU to catch up; the lead at the begin
bounds how long it can have waited:

    thread   |launch|--------- waits or works ---------|launch|
    GPU             |--- lead ---|                     |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from megatron.torch_profile.monitor.iterations.parts import OTHER, PARTS


class Moment(NamedTuple):
    """Where the thread left a mark; thousands of an iteration.

    Args:
        part: one of `PARTS` in which the thread was until then; None for what does not count.
        host, gpu: when the thread and the GPU came there, ms of either one's clock.
    """

    part: str | None
    host: float
    gpu: float


@dataclass(frozen=True, slots=True)
class HostSide:
    """Of one iteration of one rank, ms.

    Args:
        thread: by part, time of the thread, collectives that it calls there included.
        covered: by part, how much of this the thread can have waited for the GPU.
        lead: the most that it can have waited at once.
        lead_part: in which part.
    """

    thread: dict[str, float]
    covered: dict[str, float]
    lead: float = 0.0
    lead_part: str = OTHER


def host_side(moments: Iterable[Moment]) -> HostSide:
    """From the moments of an iteration in their order; the first one begins it.

    The clocks have no common zero: the smallest lead of the iteration counts as none.
    """
    known = [*moments]
    none = min(one.gpu - one.host for one in known)
    thread, covered = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0.0)
    most, most_part = 0.0, OTHER
    for before, now in pairwise(known):
        if now.part is None:
            continue
        took = now.host - before.host
        waited = min(took, before.gpu - before.host - none)
        thread[now.part] += took
        covered[now.part] += waited
        if waited > most:
            most, most_part = waited, now.part
    return HostSide(thread, covered, most, most_part)
