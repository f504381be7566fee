# SPDX-License-Identifier: Apache-2.0
"""What is logged of the iterations of an interval: numbers by key, for every sink."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from megatron.torch_profile.monitor.iterations.judgement import Judged
from megatron.torch_profile.monitor.iterations.parts import PARTS


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
        self._lengths: list[float] = []

    def add(self, judged: Judged) -> dict[str, float] | None:
        """The numbers of the interval that ends with this iteration, if one does."""
        if self._begun is None:
            self._begun = judged.iteration
        if not judged.disturbed:
            self._lengths.append(judged.total)
        if judged.compares:
            self._kept.append(judged)
        if judged.iteration % self._length:
            return None
        lengths, self._lengths = self._lengths, []
        kept, self._kept = self._kept, []
        begun, self._begun = self._begun, judged.iteration + 1
        if not lengths:
            return None
        total = median(lengths)
        if self._first_ms is None:
            self._first_ms = total
        values: dict[str, float] = {
            "monitor/iteration": judged.iteration,
            "monitor/iteration_ms": total,
            "monitor/drift_pct": 100.0 * (total / self._first_ms - 1.0),
            "monitor/left_out_iterations": judged.iteration - begun + 1 - len(lengths),
            "monitor/iterations_in_parts": len(kept),
        }
        values |= _of_memory(judged)
        return values | self._of_parts(kept) if kept else values

    def _of_parts(self, kept: Sequence[Judged]) -> dict[str, float]:
        rows = [row for one in kept for row in one.rows.values()]
        values: dict[str, float] = {
            "monitor/own_ms": fmean(row.own for row in rows),
            "monitor/waiting_ms": fmean(row.waiting for row in rows),
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


def _of_memory(judged: Judged) -> dict[str, float]:
    """What processes hold at the end of an interval."""
    held = {rank: row.resident for rank, row in judged.rows.items() if row.resident}
    if not held:
        return {}
    most = max(held, key=held.__getitem__)
    return {
        "monitor/resident_mb": fmean(held.values()),
        "monitor/resident_mb/max": held[most],
        "monitor/resident_mb/max_rank": most,
    }


def _ranks(kept: Sequence[Judged]) -> list[int]:
    return sorted({rank for one in kept for rank in one.rows})


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan
