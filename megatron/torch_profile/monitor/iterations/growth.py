# SPDX-License-Identifier: Apache-2.0
"""Ranks whose memory on the host grows from iteration to iteration, as that of a leak does.

Windows and checkpoints take memory for a while and give it back. So what counts is the least that a
rank held in each of some stretches of iterations, and a leak is what lets it rise in all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from megatron.torch_profile.monitor.iterations.judgement import Judged

_STRETCH = 25
"""Iterations of the shortest stretch; a slow leak is seen in ones twice, four times ... as long."""
_STRETCHES = 6
_SETTLING = 50
"""First iterations of a process, in which memory grows for good reasons."""
_LEAST_MB, _LEAST_SHARE = 64.0, 0.05
"""Growth over all stretches, in MB and of what the rank held, that is worth a line."""
_STEADY = 1 / 3
"""Of the mean rise from one stretch to the next, which no rise is below."""
_AGAIN = 1.5
"""Times what a rank held when it was named, that name it again."""
_KEPT = 768


@dataclass(frozen=True, slots=True)
class Growing:
    """A rank that holds more and more.

    Args:
        rank: which.
        since: first iteration of the stretches in which it grew.
        iteration: last one of them.
        before, now: MB, the least that it held in the first and in the last stretch.
        each: MB that it grew in an iteration.
    """

    rank: int
    since: int
    iteration: int
    before: float
    now: float
    each: float

    def as_line(self) -> dict[str, float]:
        """For every sink, as a line of its own."""
        return {
            "monitor/growing_rank": self.rank,
            "monitor/growing_since": self.since,
            "monitor/growing_seen": self.iteration,
            "monitor/growing_mb_per_iteration": self.each,
        }


@dataclass(slots=True)
class _Rank:
    least: float | None = None
    stretches: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    named_at: float = 0.0


class Growth:
    """Takes judged iterations in order."""

    def __init__(self) -> None:
        self._seen = 0
        self._ranks: dict[int, _Rank] = {}

    def add(self, judged: Judged) -> Iterator[Growing]:
        """Ranks that have just turned out to grow; call it with each iteration once."""
        self._seen += 1
        if self._seen <= _SETTLING:
            return
        ends = (self._seen - _SETTLING) % _STRETCH == 0
        for number, row in judged.rows.items():
            rank = self._ranks.setdefault(number, _Rank())
            if row.resident:
                rank.least = min(row.resident, rank.least or row.resident)
        for number, rank in self._ranks.items() if ends else ():
            if rank.least is None:
                rank.stretches.clear()  # stretches that are not known do not follow each other
                continue
            rank.stretches.append(rank.least)
            rank.least = None
            found = _growing(number, rank.stretches, judged.iteration)
            if found is not None and found.now >= _AGAIN * rank.named_at:
                rank.named_at = found.now
                yield found


def _growing(rank: int, stretches: Sequence[float], iteration: int) -> Growing | None:
    """By the shortest stretches that tell."""
    joined = 1
    while _STRETCHES * joined <= len(stretches):
        latest = [*stretches][-_STRETCHES * joined :]
        least = [min(latest[at : at + joined]) for at in range(0, len(latest), joined)]
        growth = least[-1] - least[0]
        rise = growth / (_STRETCHES - 1)
        enough = growth >= max(_LEAST_MB, _LEAST_SHARE * least[0])
        if enough and all(after - before >= _STEADY * rise for before, after in pairwise(least)):
            length = joined * _STRETCH
            since = iteration - _STRETCHES * length + 1
            return Growing(rank, since, iteration, least[0], least[-1], rise / length)
        joined *= 2
    return None
