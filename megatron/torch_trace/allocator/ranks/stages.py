# SPDX-License-Identifier: Apache-2.0
"""Ranks with what is known of them, and the stages of a pipeline that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatron.torch_trace.allocator.answer import MemoryAnswer
from megatron.torch_trace.allocator.ranks.rank_facts import RankFacts
from megatron.torch_trace.analysis.timeline.command_line import MEGATRON

_OF_MEGATRON = ("megatron/core/", "megatron/training/", "megatron/legacy/")


@dataclass(frozen=True, slots=True)
class RankMemory:
    """One device of one rank, and where it is."""

    answer: MemoryAnswer
    facts: RankFacts

    @property
    def megatron(self) -> bool:
        """Whether Megatron's loop trains, so that its flags can be given: capture has named the
        loop; else arguments, coordinates or the code that holds memory tell."""
        facts = self.facts
        if facts.loop is not None:
            return facts.loop == MEGATRON
        if facts.coordinates or facts.shape is not None:
            return True
        frames = (frame for one in self.answer.holders for frame in one.stack)
        return any(part in frame for frame in frames for part in _OF_MEGATRON)

    @property
    def free(self) -> int | None:
        """Bytes of the GPU that torch never had from CUDA; None if its size is unknown."""
        if self.facts.capacity is None:
            return None
        had = max(self.answer.peak_reserved, self.answer.peak_bytes)
        return max(0, self.facts.capacity - had)


@dataclass(frozen=True, slots=True)
class StageMemory:
    """One stage of the pipeline.

    Args:
        stage: its number.
        ranks: those whose memory is known, the fullest first.
    """

    stage: int
    ranks: tuple[RankMemory, ...]

    @property
    def fullest(self) -> RankMemory:
        """The rank with the largest peak."""
        return self.ranks[0]


def name_of(one: RankMemory) -> str:
    """`rank 5`, for a sentence."""
    return "a rank" if one.answer.rank is None else f"rank {one.answer.rank}"


def stages_of(ranks: Sequence[RankMemory]) -> tuple[StageMemory, ...]:
    """The stages, by number; none if they are unknown or only one."""
    found: dict[int, list[RankMemory]] = {}
    for one in ranks:
        if one.facts.stage is None:
            return ()
        found.setdefault(one.facts.stage, []).append(one)
    if len(found) < 2:
        return ()
    return tuple(
        StageMemory(stage, tuple(sorted(found[stage], key=lambda one: -one.answer.peak_bytes)))
        for stage in sorted(found)
    )
