# SPDX-License-Identifier: Apache-2.0
"""Which rank is slow: all ranks' measurements of an iteration beside each other, on rank 0.

A rank that is slow makes others wait, so whole iterations are equally long on all ranks. What tells
is a rank's *own* time, in which it waited for nobody. It is compared with that of its peers: the
other ranks of its pipeline stage, which have the same work; where it has none, with its own past.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from megatron.torch_profile.monitor.iterations.measured import OTHER, PHASES, Measured

PARTS = (*PHASES, OTHER)
_UNSETTLED = 3
"""First iterations of a process, which compile and tune."""
_PAST = 100
_SHARE = 0.05
"""Of an iteration, that a rank must be slower than its peers to be called slow."""
_FAR_SHARE = 0.5
"""The same before enough iterations have told how much they vary."""
_NOISE = 4.0
"""So many deviations of what varies from one iteration to the next."""
_KNOWN = 10
"""Iterations that tell how much they vary."""
_OUT_IN_A_ROW = 5


@dataclass(frozen=True, slots=True)
class Judged:
    """One iteration over all ranks, in ms.

    Args:
        iteration: global.
        disturbed: it is no ordinary one: evaluation, a checkpoint, a window, or one of the first.
        in_parts: all ranks measured it in its parts; else ranks are not compared.
        total: the median over ranks.
        rows: by rank.
        excess: by rank, own time less that of its peers; NaN where nothing is known.
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
        since: the first of these iterations.
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


class Judge:
    """Takes iterations in order.

    Args:
        peers: by rank, the ranks with the same work.
        in_a_row: iterations in which a rank must be slow, one after the other as they come here.
    """

    def __init__(self, peers: Sequence[Sequence[int]], in_a_row: int = 3) -> None:
        self._peers = peers
        self._in_a_row = in_a_row
        self._seen = 0
        self._totals: deque[float] = deque(maxlen=_PAST)
        self._steps: deque[float] = deque(maxlen=20 * len(peers))
        self._before: dict[int, float] = {}
        self._past: dict[int, deque[dict[str, float]]] = {}
        self._slow: dict[int, list[Judged]] = {}
        self._told: dict[int, int] = {}

    @property
    def typical(self) -> float:
        """ms of an iteration, the median of the last undisturbed ones; NaN before the first."""
        return median(self._totals) if self._totals else math.nan

    @property
    def settled(self) -> int:
        """How many iterations `typical` rests on."""
        return len(self._totals)

    def judge(self, iteration: int, rows: dict[int, Measured]) -> Judged:
        """Compare ranks in one iteration."""
        self._seen += 1
        disturbed = self._seen <= _UNSETTLED or any(row.disturbed for row in rows.values())
        total = median(row.total for row in rows.values())
        parts = {rank: self._excess(rank, rows) for rank in rows}
        excess = {rank: math.fsum(parts[rank].values()) for rank in rows}
        in_parts = all(row.in_parts for row in rows.values())
        judged = Judged(iteration, disturbed, in_parts, total, rows, excess, parts)
        if judged.compares:
            for rank, row in rows.items():
                past = self._past.setdefault(rank, deque(maxlen=_PAST))
                past.append({part: getattr(row, part) for part in PARTS})
        return judged

    def slow_ranks(self, judged: Judged) -> list[SlowRank]:
        """Ranks that have just turned out to be slow; call it with each iteration once."""
        if not judged.compares:
            return []
        bound = self._bound(judged)
        found = []
        for rank, excess in judged.excess.items():
            if not excess > bound:
                self._slow.pop(rank, None)
                if self._told.get(rank, 0) > 0:
                    self._told[rank] -= 1
                continue
            run = self._slow.setdefault(rank, [])
            run.append(judged)
            if len(run) == self._in_a_row and not self._told.get(rank):
                found.append(_slow(rank, run))
            if len(run) >= self._in_a_row:
                self._told[rank] = _OUT_IN_A_ROW
                del run[: -self._in_a_row]
        self._learn(judged)
        return found

    def _excess(self, rank: int, rows: dict[int, Measured]) -> dict[str, float]:
        mine = rows[rank]
        others = [rows[peer] for peer in self._peers[rank] if peer != rank and peer in rows]
        if others:
            usual = {part: median(getattr(row, part) for row in others) for part in PARTS}
        else:
            past = self._past.get(rank, ())
            if len(past) < _KNOWN:
                return dict.fromkeys(PARTS, math.nan)
            usual = {part: median(one[part] for one in past) for part in PARTS}
        return {part: getattr(mine, part) - usual[part] for part in PARTS}

    def _bound(self, judged: Judged) -> float:
        typical = self.typical if self._totals else judged.total
        compared = sum(not math.isnan(excess) for excess in judged.excess.values())
        if len(self._totals) < _KNOWN or len(self._steps) < _KNOWN * compared:
            return _FAR_SHARE * typical
        return max(_SHARE * typical, _NOISE * 1.4826 * median(self._steps))

    def _learn(self, judged: Judged) -> None:
        self._totals.append(judged.total)
        for rank, excess in judged.excess.items():
            if math.isnan(excess):
                continue
            before = self._before.get(rank)
            if before is not None:
                self._steps.append(abs(excess - before))
            self._before[rank] = excess


def _slow(rank: int, run: Sequence[Judged]) -> SlowRank:
    last = run[-1]
    mean = fmean(one.excess[rank] for one in run)
    return SlowRank(
        rank,
        run[0].iteration,
        last.iteration,
        mean,
        last.part_of(rank),
        median(o.total for o in run),
    )
