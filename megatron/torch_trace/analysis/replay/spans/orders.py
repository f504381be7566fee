# SPDX-License-Identifier: Apache-2.0
"""The order of forwards and backwards on each stage of a pipeline, and a common order over stages.

1F1B, or PipeDream-flush (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training"):
a stage does as many forwards as stages follow it, then one forward and one backward in turns.
Interleaved (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters
Using Megatron-LM", section 2.2): each rank has v virtual stages, called chunks, and goes through
its chunks with groups of as many micro-batches as there are ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

MOST_STAGES = 64
"""Orders that are kept: of thousands of ranks there are as many as there are stages."""


class Pass(NamedTuple):
    """A forward or a backward of a micro-batch through a chunk of a stage."""

    stage: int
    is_forward: bool
    chunk: int
    microbatch: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a pipeline: its ranks, the chunks of each, micro-batches of an iteration."""

    stages: int
    chunks: int
    microbatches: int


def warmup_of(shape: Shape, stage: int) -> int:
    """Forwards of a stage before its first backward comes in turn."""
    passes = shape.microbatches * shape.chunks
    behind = shape.stages - stage - 1
    if shape.chunks == 1:
        return min(behind, passes)
    return min(2 * behind + (shape.chunks - 1) * shape.stages, passes)


@lru_cache(maxsize=MOST_STAGES)
def order_of(shape: Shape, stage: int) -> tuple[Pass, ...]:
    """All passes of a stage in one iteration, in order."""
    forwards = [Pass(stage, True, chunk, number) for chunk, number in _rounds(shape)]
    backwards = [
        Pass(stage, False, shape.chunks - 1 - chunk, number) for chunk, number in _rounds(shape)
    ]
    warmup = warmup_of(shape, stage)
    found = forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        found += (forward, backward)
    return (*found, *backwards[len(forwards) - warmup :])


def _rounds(shape: Shape) -> list[tuple[int, int]]:
    """Chunk and micro-batch one after the other, as forwards have it."""
    group = shape.stages
    return [
        (chunk, number)
        for first in range(0, shape.microbatches, group)
        for chunk in range(shape.chunks)
        for number in range(first, min(first + group, shape.microbatches))
    ]


def needed_by(shape: Shape, one: Pass) -> Pass | None:
    """The pass on another stage whose result this one takes; None at the ends of the pipeline.

    The last chunk of the last stage turns round: its backward takes what its own forward left.
    """
    if one.is_forward:
        if one.stage > 0:
            return one._replace(stage=one.stage - 1)
        if one.chunk > 0:
            return one._replace(stage=shape.stages - 1, chunk=one.chunk - 1)
        return None
    if one.stage < shape.stages - 1:
        return one._replace(stage=one.stage + 1)
    if one.chunk < shape.chunks - 1:
        return one._replace(stage=0, chunk=one.chunk + 1)
    return None


@dataclass(frozen=True, slots=True)
class Plan:
    """All passes of all stages so that each comes after what it waits for.

    Args:
        passes: the passes.
        previous: for each, the position of the pass before it on its stage; -1 for the first.
        needed: the position of the pass whose result it takes; -1 where there is none.
    """

    passes: tuple[Pass, ...]
    previous: tuple[int, ...]
    needed: tuple[int, ...]


@lru_cache(maxsize=16)
def plan_of(shape: Shape) -> Plan:
    """The common order.

    Raises:
        ValueError: the stages would wait for each other for ever.
    """
    orders = [order_of(shape, stage) for stage in range(shape.stages)]
    at = [0] * shape.stages
    last = [-1] * shape.stages
    position: dict[Pass, int] = {}
    passes: list[Pass] = []
    previous: list[int] = []
    needed: list[int] = []
    total = sum(map(len, orders))
    while len(passes) < total:
        before = len(passes)
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                one = order[at[stage]]
                source = needed_by(shape, one)
                if source is not None and source not in position:
                    break
                needed.append(-1 if source is None else position[source])
                previous.append(last[stage])
                last[stage] = position[one] = len(passes)
                passes.append(one)
                at[stage] += 1
        if len(passes) == before:
            raise ValueError(f"{shape}: its stages would wait for each other")
    return Plan(tuple(passes), tuple(previous), tuple(needed))
