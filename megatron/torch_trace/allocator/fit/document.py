# SPDX-License-Identifier: Apache-2.0
"""`torch-trace memory --fit --json`: bytes as whole numbers, unknown is null."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from megatron.torch_trace.allocator.fit.effects import Effect
from megatron.torch_trace.allocator.fit.fitting import Fit, RankFit
from megatron.torch_trace.wording import path_text


def fit_document(fit: Fit | str) -> dict[str, Any]:
    """What stands under `fit`."""
    if isinstance(fit, str):
        return {"unknown": fit}
    return {
        "unknown": None,
        "largest_micro_batch": fit.largest,
        "perhaps_micro_batch": fit.perhaps,
        "outside_of_torch_bytes": fit.outside,
        "outside_of_torch_is_assumed": fit.outside_is_assumed,
        "ranks": [_rank(one) for one in fit.ranks],
        "effects": _effects(fit.tightest.effects),
        "measured": _effects(fit.measured),
    }


def _rank(one: RankFit) -> dict[str, Any]:
    answer = one.rank.answer
    return {
        "file": path_text(answer.path),
        "rank": answer.rank,
        "stage": one.rank.facts.stage,
        "micro_batch": one.shape.micro_batch,
        "bytes_per_sample": one.per_sample,
        "measured_with_micro_batch": one.measured_with,
        "capacity_bytes": one.rank.facts.capacity,
        "room_bytes": one.room,
        "needs": [asdict(need) for need in one.needs],
        "largest_micro_batch": one.largest,
        "perhaps_micro_batch": one.perhaps,
    }


def _effects(found: Sequence[Effect]) -> list[dict[str, Any]]:
    return [
        {
            "change": one.change,
            "frees_bytes": one.frees,
            "error_bytes": one.error,
            "how": one.how,
        }
        for one in found
    ]
