# SPDX-License-Identifier: Apache-2.0
"""What is logged of the iterations of an interval: numbers by key, for every sink."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from megatron.torch_profile.monitor.iterations.judgement import PARTS, Judged


class Intervals:
    """Adds up judged iterations until an interval is full.

    Args:
        length: iterations.
        hosts: of each rank.
    """

    def __init__(self, length: int, hosts: Sequence[str]) -> None:
        self._length = length
        self._hosts = hosts
        self._first_ms: float | None = None
        self._begun: int | None = None
        self._kept: list[Judged] = []

    def add(self, judged: Judged) -> dict[str, float] | None:
        """The numbers of the interval that ends with this iteration, if one does."""
        if self._begun is None:
            self._begun = judged.iteration
        if judged.compares:
            self._kept.append(judged)
        if judged.iteration % self._length:
            return None
        left_out = judged.iteration - self._begun + 1 - len(self._kept)
        kept, self._kept, self._begun = self._kept, [], judged.iteration + 1
        return self._values(kept, judged.iteration, left_out) if kept else None

    def _values(self, kept: Sequence[Judged], iteration: int, left_out: int) -> dict[str, float]:
        total = median(one.total for one in kept)
        if self._first_ms is None:
            self._first_ms = total
        rows = [row for one in kept for row in one.rows.values()]
        values: dict[str, float] = {
            "monitor/iteration": iteration,
            "monitor/iteration_ms": total,
            "monitor/drift_pct": 100.0 * (total / self._first_ms - 1.0),
            "monitor/own_ms": fmean(row.own for row in rows),
            "monitor/waiting_ms": fmean(row.waiting for row in rows),
            "monitor/left_out_iterations": left_out,
        }
        values |= {
            f"monitor/{part}_ms": fmean(getattr(row, part) for row in rows) for part in PARTS
        }
        excess = {
            rank: _mean([one.excess.get(rank, math.nan) for one in kept]) for rank in _ranks(kept)
        }
        known = {rank: ms for rank, ms in excess.items() if not math.isnan(ms)}
        if known:
            slowest = max(known, key=known.__getitem__)
            values["monitor/slowest_rank"] = slowest
            values["monitor/slowest_by_ms"] = known[slowest]
            for part in PARTS:
                mine = [one.parts[slowest][part] for one in kept if slowest in one.parts]
                values[f"monitor/slowest_by_ms/{part}"] = _mean(mine)
            values |= self._slowest_node(known)
        return values

    def _slowest_node(self, excess: dict[int, float]) -> dict[str, float]:
        by_host: dict[str, list[int]] = {}
        for rank in excess:
            by_host.setdefault(self._hosts[rank], []).append(rank)
        if len(by_host) < 2:
            return {}
        means = {host: fmean(excess[rank] for rank in ranks) for host, ranks in by_host.items()}
        slowest = max(means, key=means.__getitem__)
        return {
            "monitor/slowest_node_first_rank": by_host[slowest][0],
            "monitor/slowest_node_by_ms": means[slowest],
        }


def _ranks(kept: Sequence[Judged]) -> list[int]:
    return sorted({rank for one in kept for rank in one.rows})


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan
