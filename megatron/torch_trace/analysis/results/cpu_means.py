# SPDX-License-Identifier: Apache-2.0
"""Time of the CPU as means over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron.torch_trace.analysis.results.cpu_time import CpuSplit
from megatron.torch_trace.analysis.timeline.moment import Moment

if TYPE_CHECKING:
    from megatron.torch_trace.analysis.results.analysis import RankResult


@dataclass(frozen=True, slots=True)
class CpuMeans:
    """A length of time and its parts, ns; see `CpuSplit`."""

    length_ns: float
    operators_ns: float
    data_ns: float
    other_ns: float


@dataclass(frozen=True, slots=True)
class OperatorMeans:
    """An operator; means over all ranks, see `CpuOperatorRow`. `longest` is `longest_rank`'s."""

    operator: str
    calls: float
    self_ns: float
    time_ns: float
    share: float
    longest: Moment | None
    longest_rank: int


def means(splits: Sequence[CpuSplit]) -> CpuMeans:
    """Of at least one."""
    return CpuMeans(
        *(
            sum(getattr(one, name) for one in splits) / len(splits)
            for name in ("length_ns", "operators_ns", "data_ns", "other_ns")
        )
    )


def mean_operators(ranks: Sequence[RankResult]) -> list[OperatorMeans]:
    """By own time."""
    rows: dict[str, list[OperatorMeans]] = {}
    count = len(ranks)
    for rank in ranks:
        for row in rank.cpu.operators if rank.cpu else ():
            one = OperatorMeans(
                row.operator,
                row.calls / count,
                row.self_ns / count,
                row.time_ns / count,
                0.0,
                row.longest,
                rank.rank,
            )
            rows.setdefault(row.operator, []).append(one)
    whole = sum(one.self_ns for found in rows.values() for one in found) or 1.0
    joined = [_joined(found, whole) for found in rows.values()]
    return sorted(joined, key=lambda one: (-one.self_ns, one.operator))


def _joined(rows: Sequence[OperatorMeans], whole: float) -> OperatorMeans:
    longest = max(rows, key=lambda one: one.longest.duration_ns if one.longest else 0)
    own = sum(one.self_ns for one in rows)
    return OperatorMeans(
        rows[0].operator,
        sum(one.calls for one in rows),
        own,
        sum(one.time_ns for one in rows),
        own / whole,
        longest.longest,
        longest.longest_rank,
    )
