# SPDX-License-Identifier: Apache-2.0
"""`torch-trace memory --against BASE --json`: bytes as whole numbers, unknown is null."""

from __future__ import annotations

from typing import Any

from megatron.torch_trace.allocator.answer import MemoryAnswer
from megatron.torch_trace.allocator.difference.changes import Change, HeldChange
from megatron.torch_trace.allocator.difference.difference import (
    MemoryDifference,
    MemoryDifferences,
)
from megatron.torch_trace.wording import path_text

SCHEMA = 1


def difference_document(found: MemoryDifferences, most: int) -> dict[str, Any]:
    """The rank whose peak changes most, and beside it each.

    Args:
        found: at least one rank.
        most: modules and stacks of each.
    """
    return {
        "schema": SCHEMA,
        **_rank(found.largest, most),
        "ranks": [_rank(one, most) for one in found.ranks],
        "only_before": [_side(one) for one in found.only_before],
        "only_after": [_side(one) for one in found.only_after],
    }


def _rank(one: MemoryDifference, most: int) -> dict[str, Any]:
    return {
        "rank": one.rank,
        "before": _side(one.before),
        "after": _side(one.after),
        "peak_bytes": _change(one.at_peak.total),
        "reserved_bytes": _change(one.reserved),
        "end_bytes": _change(one.at_end.total),
        "scattered_bytes": _change(one.scattered) if one.scattered else None,
        "at_peak": _held(one.at_peak, most),
        "at_end": _held(one.at_end, most),
    }


def _side(one: MemoryAnswer) -> dict[str, Any]:
    return {"file": path_text(one.path), "rank": one.rank, "device": one.device}


def _held(one: HeldChange, most: int) -> dict[str, Any]:
    return {
        "categories": {row.name.replace(" ", "_"): _change(row) for row in one.categories},
        "modules": [
            {"module": row.name or None, "kind": row.kind, **_change(row)}
            for row in one.modules[:most]
        ],
        "more_modules": max(0, len(one.modules) - most),
        "stacks": [
            {
                "module": row.name or None,
                "category": row.category.value if row.category else None,
                "kind": row.kind,
                **_change(row),
                "stack": list(row.stack),
            }
            for row in one.stacks[:most]
        ],
        "more_stacks": max(0, len(one.stacks) - most),
    }


def _change(one: Change) -> dict[str, int]:
    return {"before": one.before, "after": one.after, "change": one.change}
