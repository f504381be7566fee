# SPDX-License-Identifier: Apache-2.0
"""Where a rank stands in the pipeline's schedule, as Megatron itself counts it."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

_SCHEDULES = "megatron.core.pipeline_parallel.schedules"


class Schedule:
    """Where a rank stands in 1F1B.

    A stage runs `warmup` forwards, then one backward after each forward, then the backwards that
    are left (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
    Clusters", section 2.2). With v virtual stages, p stages and groups of g micro-batches, stage i
    has 2(p-i-1) + (v-1)g of them, else p-i-1; some flags make it more.

    Args:
        stages, stage: pipeline size and this rank's stage.
        chunks: virtual stages of a rank.
        microbatches: of an iteration.
        group: micro-batches that a virtual stage takes at once; `stages` by default.
        warmup: as Megatron counts it; None counts as above.
    """

    def __init__(
        self,
        stages: int,
        stage: int,
        chunks: int,
        microbatches: int,
        group: int | None = None,
        warmup: int | None = None,
    ) -> None:
        self._chunks = chunks
        self._total = microbatches * chunks
        if warmup is None:
            left = stages - stage - 1
            warmup = left if chunks == 1 else 2 * left + (chunks - 1) * (group or stages)
        self._warmup = min(warmup, self._total)

    def phase(self, direction: str, index: int) -> str:
        """warmup, steady or cooldown of the rank's index-th forward or backward."""
        if direction == "forward":
            return "warmup" if index < self._warmup else "steady"
        return "steady" if index < self._total - self._warmup else "cooldown"

    def chunk_of(self, model: Any) -> int | None:
        """The virtual stage of a model chunk, None if there is only one."""
        if self._chunks == 1:
            return None
        while not hasattr(model, "vp_stage") and hasattr(model, "module"):
            model = model.module
        stage = getattr(model, "vp_stage", None)
        if stage is None:  # before core 0.13 the schedule keeps it in a global
            stage = _parallel_state().get_virtual_pipeline_model_parallel_rank()
        return int(stage) if stage is not None else None


def schedule_of(microbatches: int, config: Any) -> Schedule | None:
    """The schedule of an iteration on this rank; None without a pipeline.

    Args:
        microbatches: of the iteration.
        config: Megatron's, of the model.
    """
    state = _parallel_state()
    stages = state.get_pipeline_model_parallel_world_size()
    if stages == 1:
        return None
    chunks = state.get_virtual_pipeline_model_parallel_world_size() or 1
    group = getattr(config, "microbatch_group_size_per_vp_stage", None)
    overlaps = bool(getattr(config, "overlap_moe_expert_parallel_comm", False))
    return Schedule(
        stages,
        state.get_pipeline_model_parallel_rank(),
        chunks,
        microbatches,
        group,
        _megatrons_warmup(microbatches, chunks, group or stages, overlaps),
    )


def microbatch_name(
    direction: str,
    number: int | None,
    chunk: int | None,
    phase: str | None,
    model: str | None = None,
) -> str:
    """What the span of a pass is called; None is left out.

    Args:
        direction: forward or backward.
        number: of the micro-batch, from 0.
        chunk: virtual stage.
        phase: place in 1F1B.
        model: its name, where a loop has several.
    """
    name = f"{direction} micro-batch"
    if number is not None:
        name += f" {number}"
    if model is not None:
        name += f" of {model}"
    if chunk is not None:
        name += f" chunk {chunk}"
    return f"{name} ({phase})" if phase else name


@lru_cache(maxsize=32)
def _megatrons_warmup(microbatches: int, chunks: int, group: int, overlaps: bool) -> int | None:
    """What the schedule itself asks; None before core 0.13, which has no function for it."""
    ask = getattr(sys.modules.get(_SCHEDULES), "get_pp_rank_microbatches", None)
    if ask is None:
        return None
    given: dict[str, Any] = {"overlap_moe_expert_parallel_comm": True} if overlaps else {}
    return int(ask(microbatches, chunks, group, **given)[2])


def _parallel_state() -> Any:
    from megatron.core import parallel_state

    return parallel_state
