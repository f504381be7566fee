# SPDX-License-Identifier: Apache-2.0
"""`torch-trace memory --json`: bytes and ns as whole numbers, unknown is null."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megatron.torch_trace.allocator.answer import MemoryAnswer
from megatron.torch_trace.allocator.findings import memory_findings
from megatron.torch_trace.allocator.fragmentation import Fragmentation
from megatron.torch_trace.wording import path_text

SCHEMA = 1


def document(answers: Sequence[MemoryAnswer], most: int) -> dict[str, Any]:
    """The fullest process's answer, and beside it that of each.

    Args:
        answers: at least one.
        most: holders of each.
    """
    fullest = max(answers, key=lambda one: one.peak_bytes)
    return {
        "schema": SCHEMA,
        **_answer(fullest, most),
        "ranks": [_answer(one, most) for one in answers],
    }


def _answer(one: MemoryAnswer, most: int) -> dict[str, Any]:
    return {
        "file": path_text(one.path),
        "rank": one.rank,
        "device": one.device,
        "peak_bytes": one.peak_bytes,
        "reserved_bytes": one.peak_reserved,
        "peak_at_ns": one.peak_time or None,
        "categories": {category.value: size for category, size in one.categories.items() if size},
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
                "stack": list(failed.stack),
            }
            for failed in one.out_of_memory
        ],
        "history": {
            "entries": one.entries,
            "duration_ns": round(one.seconds * 1e9),
            "cuda_allocations": one.cuda_allocations,
        },
        "findings": [
            {
                "code": found.code,
                "severity": found.severity,
                "title": found.sentence,
                "evidence": found.evidence,
                "advice": found.advice,
            }
            for found in memory_findings(one)
        ],
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
