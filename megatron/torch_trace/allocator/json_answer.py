# SPDX-License-Identifier: Apache-2.0
"""`torch-trace memory --json`: bytes and ns as whole numbers, unknown is null."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megatron.torch_trace.allocator.answer import MemoryAnswer
from megatron.torch_trace.allocator.findings import MemoryFinding, memory_findings
from megatron.torch_trace.allocator.fragmentation import Fragmentation
from megatron.torch_trace.allocator.ranks.rank_findings import findings_of_all
from megatron.torch_trace.allocator.ranks.stages import RankMemory, StageMemory, stages_of
from megatron.torch_trace.wording import path_text

SCHEMA = 1


def document(ranks: Sequence[RankMemory], most: int) -> dict[str, Any]:
    """The fullest process's answer, and beside it that of each, and of each stage.

    Args:
        ranks: at least one.
        most: holders of each.
    """
    fullest = max(ranks, key=lambda one: one.answer.peak_bytes)
    return {
        "schema": SCHEMA,
        **_answer(fullest, most),
        "findings": [_finding(one) for one in findings_of_all(ranks)],
        "ranks": [_answer(one, most) for one in ranks],
        "stages": [_stage(one) for one in stages_of(ranks)],
    }


def _stage(one: StageMemory) -> dict[str, Any]:
    answer = one.fullest.answer
    return {
        "stage": one.stage,
        "ranks": sorted(found.answer.rank for found in one.ranks if found.answer.rank is not None),
        "fullest_rank": answer.rank,
        "peak_bytes": answer.peak_bytes,
        "reserved_bytes": answer.peak_reserved,
        "categories": _categories(answer),
    }


def _categories(one: MemoryAnswer) -> dict[str, int]:
    return {category.value: size for category, size in one.categories.items() if size}


def _finding(found: MemoryFinding) -> dict[str, Any]:
    return {
        "code": found.code,
        "severity": found.severity,
        "title": found.sentence,
        "evidence": found.evidence,
        "advice": found.advice,
    }


def _answer(rank: RankMemory, most: int) -> dict[str, Any]:
    one = rank.answer
    return {
        "file": path_text(one.path),
        "rank": one.rank,
        "device": one.device,
        "coordinates": dict(rank.facts.coordinates),
        "capacity_bytes": rank.facts.capacity,
        "peak_bytes": one.peak_bytes,
        "reserved_bytes": one.peak_reserved,
        "peak_at_ns": one.peak_time or None,
        "categories": _categories(one),
        "holders": [
            {
                "bytes": holder.size,
                "blocks": holder.blocks,
                "category": holder.category.value,
                "module": holder.module or None,
                "stack": list(holder.stack),
            }
            for holder in one.holders[:most]
        ],
        "more_holders": max(0, len(one.holders) - most),
        "fragmentation": _fragmentation(one.fragmentation),
        "growth": [
            {"bytes_per_step": grown.size_per_step, "steps": grown.steps, "stack": [*grown.stack]}
            for grown in one.growth
        ],
        "out_of_memory": [
            {
                "at_ns": failed.time or None,
                "requested_bytes": failed.requested,
                "device_free_bytes": failed.device_free,
                "where": failed.where or None,
                "stack": list(failed.stack),
            }
            for failed in one.out_of_memory
        ],
        "history": {
            "entries": one.entries,
            "duration_ns": round(one.seconds * 1e9),
            "cuda_allocations": one.cuda.asked,
            "steady_cuda_allocations": one.cuda.steady,
            "allocator_retries": one.cuda.retries,
        },
        "findings": [_finding(found) for found in memory_findings(one, megatron=rank.megatron)],
        "damaged": {"cut_short": one.cut_short, "odd_entries": one.odd},
    }


def _fragmentation(free: Fragmentation | None) -> dict[str, int] | None:
    if free is None:
        return None
    return {
        "reserved_bytes": free.reserved,
        "in_use_bytes": free.in_use,
        "returnable_bytes": free.returnable,
        "scattered_bytes": free.scattered,
        "largest_free_bytes": free.largest_free,
        "segments": free.segments,
        "other_pools_bytes": free.other_pools,
    }
