# SPDX-License-Identifier: Apache-2.0
"""Which rank is slow: all ranks' measurements of an iteration beside each other, on rank 0.

A rank that is slow makes others wait, so whole iterations are equally long on all ranks. What tells
is a rank's *own* time (`own_time`), in which it waited for nobody. It is compared with that of its
peers: the other ranks of its pipeline stage, which have the same work; where it has none, with its
own past.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from megatron.torch_profile.monitor.iterations.measured import Measured
from megatron.torch_profile.monitor.iterations.own_time import own_times
from megatron.torch_profile.monitor.iterations.parts import PARTS
from megatron.torch_profile.monitor.iterations.sampling import SLOW, UNSETTLED

_PAST = 100
_MOST_WITH_PAST = 8
"""Ranks with the same work: of more some send always, and none is compared with its own past, which
of thousands of ranks would be hundreds of MB."""
_THREADS_PAST = 16
"""Iterations measured in parts, of which the thread's usual time is the median."""
_SHARE = 0.05
"""Of an iteration, that a rank must be slower than its peers to be called slow."""
_FAR_SHARE = 0.5
"""The same before enough iterations have told how much they vary."""
_NOISE = 0.95
"""This share of steps from one iteration to the next are no larger than a slow rank's excess."""
_KNOWN, _REMEMBERED = 10, 50
"""Iterations that tell how much they vary: at least, and at most."""
_FAST_IN_A_ROW = 2
"""Iterations, measured in parts, after which a rank that was named may be named again."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One iteration over all ranks, in ms.

    Args:
        iteration: global.
        disturbed: it is no ordinary one: evaluation, a checkpoint, a window, or one of the first.
        in_parts: all ranks measured it in its parts; else ranks are not compared.
        total: the median over ranks.
        rows: by rank.
        excess: by rank, own time less that of its peers; NaN where nothing is known; no rank where
            the iteration was not measured in its parts.
        parts: by rank, the same of each of `PARTS`.
    """

    iteration: int
    disturbed: bool
    in_parts: bool
    total: float
    rows: dict[int, Measured]
    excess: dict[int, float]
    parts: dict[int, dict[str, float]]

    @property
    def compares(self) -> bool:
        """Whether ranks can be compared in it."""
        return self.in_parts and not self.disturbed

    @property
    def slowest(self) -> int | None:
        """The rank with the largest excess; None if no rank has any."""
        known = {rank: ms for rank, ms in self.excess.items() if not math.isnan(ms)}
        return max(known, key=known.__getitem__) if known else None

    def part_of(self, rank: int) -> str:
        """The part in which a rank is slower than its peers."""
        return max(self.parts[rank], key=self.parts[rank].__getitem__)


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank has been slow in several iterations running.

    Args:
        rank: which.
        since: the first of these iterations, or of the slow ones directly before them of which the
            parts are not known.
        iteration: the last of them.
        excess: ms an iteration, mean over them.
        part: in which part of it.
        total: ms of an iteration.
    """

    rank: int
    since: int
    iteration: int
    excess: float
    part: str
    total: float

    def as_line(self) -> dict[str, float]:
        """For every sink, as a line of its own."""
        return {
            "monitor/slow_rank": self.rank,
            "monitor/slow_since": self.since,
            "monitor/slow_seen": self.iteration,
            "monitor/slow_by_ms": self.excess,
            f"monitor/slow_by_ms/{self.part}": self.excess,
        }


@dataclass(slots=True)
class _Run:
    """Iterations in which a rank is slow, one after the other as they are measured in parts."""

    since: int
    iterations: list[Judged]


@dataclass(slots=True)
class _Told:
    """A rank that was named, and is not named again for the same reason."""

    excess: float
    fast_iterations_left: int


class Judge:
    """Takes iterations in order.

    Args:
        peers: by rank, the ranks with the same work, itself among them.
        in_a_row: iterations measured in parts in which a rank must be slow, one after the other.
    """

    def __init__(self, peers: Sequence[Sequence[int]], in_a_row: int = 3) -> None:
        self._in_a_row = in_a_row
        self._groups = [*dict.fromkeys(tuple(ranks) for ranks in peers)]
        self._seen = 0
        self._totals: deque[float] = deque(maxlen=_PAST)
        self._steps: deque[float] = deque(maxlen=_REMEMBERED * len(peers))
        self._before: dict[int, float] = {}
        few = {rank for ranks in self._groups if len(ranks) <= _MOST_WITH_PAST for rank in ranks}
        self._past = {rank: deque[dict[str, float]](maxlen=_PAST) for rank in few}
        self._threads: dict[int, deque[dict[str, float]]] = {}
        self._lengthened_since: int | None = None
        self._slow: dict[int, _Run] = {}
        self._unlearned: list[Judged] = []
        self._told: dict[int, _Told] = {}

    @property
    def typical(self) -> float:
        """ms of an iteration, the median of the last undisturbed ones; NaN before the first."""
        return median(self._totals) if self._totals else math.nan

    def judge(self, iteration: int, rows: dict[int, Measured]) -> Judged:
        """Compare ranks in one iteration; call it with each iteration once.

        Args:
            iteration: global.
            rows: of the ranks that have sent one, by rank.
        """
        self._seen += 1
        disturbed = self._seen <= UNSETTLED or any(row.disturbed for row in rows.values())
        total = median(row.total for row in rows.values())
        in_parts = all(row.in_parts for row in rows.values())
        parts = self._excess(rows) if in_parts else {}
        excess = {rank: math.fsum(parts[rank].values()) for rank in parts}
        judged = Judged(iteration, disturbed, in_parts, total, rows, excess, parts)
        if not (disturbed or in_parts):
            self._see_length(judged)
        if not disturbed:
            self._totals.append(total)
        if judged.compares:
            for rank, row in rows.items():
                if (past := self._past.get(rank)) is not None:
                    past.append({part: getattr(row, part) for part in PARTS})
                if row.host is not None:
                    threads = self._threads.setdefault(rank, deque(maxlen=_THREADS_PAST))
                    threads.append(row.host.thread)
        return judged

    def slow_ranks(self, judged: Judged) -> list[SlowRank]:
        """Ranks that have just turned out to be slow; call it with each iteration once."""
        if not judged.compares:
            return []
        bound = self._bound(judged)
        lengthened, self._lengthened_since = self._lengthened_since, None
        found = []
        for rank, excess in judged.excess.items():
            told = self._told.get(rank)
            if not excess > bound:
                self._slow.pop(rank, None)
                if told is not None and not excess > bound / 2:
                    told.fast_iterations_left -= 1
                    if not told.fast_iterations_left:
                        del self._told[rank]
                continue
            run = self._slow.setdefault(rank, _Run(lengthened or judged.iteration, []))
            run.iterations = [*run.iterations, judged][-self._in_a_row :]
            if len(run.iterations) == self._in_a_row:
                least = min(one.excess[rank] for one in run.iterations)
                if told is None or least > told.excess + bound:
                    found.append(_slow(rank, run))
                    told = self._told[rank] = _Told(least, _FAST_IN_A_ROW)
            if told is not None:
                told.fast_iterations_left = _FAST_IN_A_ROW
        self._learn(judged)
        return found

    def _learn(self, judged: Judged) -> None:
        """How much ranks vary; what turns out to be a slow rank, and what that does to its peers,
        is no variation."""
        self._unlearned.append(judged)
        if any(len(run.iterations) == self._in_a_row for run in self._slow.values()):
            self._unlearned.clear()
        if not self._slow:
            for one in self._unlearned:
                self._learn_steps(one)
            self._unlearned.clear()

    def _see_length(self, judged: Judged) -> None:
        """Of an iteration of which the parts are not known."""
        if not judged.total > SLOW * self.typical:
            self._lengthened_since = None
        elif self._lengthened_since is None:
            self._lengthened_since = judged.iteration

    def _excess(self, rows: dict[int, Measured]) -> dict[int, dict[str, float]]:
        excess = {}
        for group in self._groups:
            there = [rank for rank in group if rank in rows]
            if len(there) == 1:
                excess[there[0]] = self._beyond_past(there[0], rows[there[0]])
                continue
            own = own_times([rows[rank] for rank in there], [*map(self._usual, there)])
            for rank in there:
                excess[rank] = dict.fromkeys(PARTS, 0.0)
            for part in PARTS:
                values = [times[part] for times in own]
                for rank, value, usual in zip(there, values, _others(values), strict=True):
                    excess[rank][part] = value - usual
        return {rank: excess[rank] for rank in rows}

    def _usual(self, rank: int) -> dict[str, float] | None:
        """What a rank's thread takes for a part, where that is known."""
        past = self._threads.get(rank, ())
        if len(past) < _KNOWN:
            return None
        return {part: median(one[part] for one in past) for part in PARTS}

    def _beyond_past(self, rank: int, row: Measured) -> dict[str, float]:
        past = self._past.get(rank, ())
        if len(past) < _KNOWN:
            return dict.fromkeys(PARTS, math.nan)
        return {part: getattr(row, part) - median(one[part] for one in past) for part in PARTS}

    def _bound(self, judged: Judged) -> float:
        """ms by which a slow rank exceeds its peers."""
        typical = self.typical
        compared = sum(not math.isnan(excess) for excess in judged.excess.values())
        if len(self._steps) < (_KNOWN - 1) * max(1, compared):
            return _FAR_SHARE * typical
        steps = sorted(self._steps)
        return max(_SHARE * typical, steps[int(_NOISE * len(steps))])

    def _learn_steps(self, judged: Judged) -> None:
        for rank, excess in judged.excess.items():
            if math.isnan(excess):
                continue
            before = self._before.get(rank)
            if before is not None:
                self._steps.append(abs(excess - before))
            self._before[rank] = excess


def _others(values: Sequence[float]) -> list[float]:
    """For each of two or more values, the median of the others."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranked = [values[index] for index in order]
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    found = [0.0] * len(values)
    for at, index in enumerate(order):
        found[index] = (ranked[low + (low >= at)] + ranked[high + (high >= at)]) / 2
    return found


def _slow(rank: int, run: _Run) -> SlowRank:
    iterations = run.iterations
    last = iterations[-1]
    mean = fmean(one.excess[rank] for one in iterations)
    total = median(one.total for one in iterations)
    return SlowRank(rank, run.since, last.iteration, mean, last.part_of(rank), total)
