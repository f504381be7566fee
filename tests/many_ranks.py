# SPDX-License-Identifier: Apache-2.0
"""A job of many ranks made of the results of a few real ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from megatron.torch_trace.analysis.communication.clocks import Clock
from megatron.torch_trace.analysis.communication.stragglers import Straggler
from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.results.summary import summarise
from megatron.torch_trace.analysis.timeline.breakdown import Breakdown

TP, PP = 8, 8


def of_many(analysis: Analysis, count: int) -> Analysis:
    """The ranks of `analysis` again and again, each a little more idle than the one before."""
    ranks = [_rank(analysis.ranks[n % len(analysis.ranks)], n, count) for n in range(count)]
    late = analysis.stragglers
    stragglers = [_late(late[n % len(late)], n) for n in range(count)] if late else []
    return replace(
        analysis,
        ranks=tuple(ranks),
        summary=summarise(ranks),
        missing_ranks=(),
        stragglers=tuple(sorted(stragglers, key=lambda one: (-one.imposed_wait_ns, one.rank))),
        clocks=tuple(Clock(n, 100 * n, 700, 144, 0) for n in range(count)),
    )


def _rank(rank: RankResult, number: int, count: int) -> RankResult:
    parts = rank.breakdown
    assert parts is not None
    moved = parts.exposed_communication * number // (2 * count)
    return replace(
        rank,
        rank=number,
        file=rank.file.replace(f"rank-{rank.rank}", f"rank-{number:04d}"),
        world_size=count,
        coordinates={
            "tp": number % TP,
            "pp": number // (count // PP),
            "dp": number // TP % max(count // TP // PP, 1),
        },
        host_name=f"node{number // 8:03d}",
        breakdown=Breakdown(
            parts.compute,
            parts.exposed_communication - moved,
            parts.exposed_memory,
            parts.idle + moved,
        ),
        pipeline=tuple(
            replace(one, rank=number, stage=number // (count // PP), stages=PP)
            for one in rank.pipeline
        ),
    )


def _late(one: Straggler, number: int) -> Straggler:
    rows: Sequence = one.by_collective
    return replace(
        one,
        rank=number,
        imposed_wait_ns=one.imposed_wait_ns + number,
        by_collective=tuple(
            replace(row, imposed_wait_ns=row.imposed_wait_ns + number) for row in rows
        ),
    )
