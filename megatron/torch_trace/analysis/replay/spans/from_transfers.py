# SPDX-License-Identifier: Apache-2.0
"""Times of passes from what lies between sends and receives, where the CPU waits at each of them.

stage 0   F0 s  F1 [s r] B0 F2 [s r] B1 ...      a block is what lies between two transfers; in
last      r F0 B0 [s r] F1 B1 [s r] ...          it the CPU launches and the GPU computes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from megatron.torch_trace.analysis.replay.spans.orders import (
    MOST_STAGES,
    Pass,
    Shape,
    order_of,
    warmup_of,
)
from megatron.torch_trace.analysis.replay.spans.passes import BACKWARD, FORWARD, Times
from megatron.torch_trace.analysis.replay.spans.recorded_steps import Rank
from megatron.torch_trace.analysis.timeline.code_columns import rows_with
from megatron.torch_trace.columns.intervals import Ints

_POINT_TO_POINT = ("send", "recv", "send_recv")
_BACKWARD_SHARE = 2 / 3
"""Of a forward and its backward, where nothing tells them apart: a backward has twice the work."""


@dataclass(frozen=True, slots=True)
class Transfers:
    """Pipeline sends and receives of a rank in one step, ns since the step's start."""

    start: Ints
    end: Ints


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one rank in one step, ns.

    Args:
        cpu, gpu: by direction, chunk and micro-batch.
        head: from the step's start to the first pass.
        tail: from the end of the last pass to the step's end.
    """

    cpu: Times
    gpu: Times
    head: float
    tail: float


def transfers_of(rank: Rank, number: int) -> Transfers:
    """The sends and receives that a rank launched in a step, in this order."""
    calls, step = rank.calls, rank.step(number)
    kinds = [
        code
        for code, kind in enumerate(calls.kinds)
        if kind.dimension == "pp" and kind.collective in _POINT_TO_POINT
    ]
    mine = rows_with(calls.kind, kinds, len(calls.kinds))
    rows = np.flatnonzero(mine & (calls.step == number))
    base = rank.result.base_ns + step.start_ns
    return Transfers(calls.start[rows] - base, calls.end[rows] - base)


@lru_cache(maxsize=MOST_STAGES)
def blocks_of(shape: Shape, stage: int) -> tuple[tuple[Pass, ...], ...]:
    """Passes between transfers; an empty block where one transfer follows another."""
    last, warmup = shape.stages - 1, warmup_of(shape, stage)
    order = order_of(shape, stage)
    steady = 2 * (shape.microbatches - warmup)
    blocks: list[list[Pass]] = [[]]
    for position, one in enumerate(order):
        in_turns = warmup <= position < warmup + steady
        receives = stage > 0 if one.is_forward else stage < last
        sends = stage < last if one.is_forward else stage > 0
        # In turns a send and the receive after it are one transfer, which came with the send.
        merged = in_turns and position > warmup
        if receives and not merged:
            blocks.append([])
        blocks[-1].append(one)
        if sends or (in_turns and one.is_forward and stage < last):
            blocks.append([])
    return tuple(map(tuple, blocks))


def measure(shape: Shape, rank: Rank, number: int) -> Measured | None:
    """Times of a rank's passes in a step; None where its transfers are not those of 1F1B."""
    row = next((one for one in rank.result.pipeline if one.step == number), None)
    found = transfers_of(rank, number)
    blocks: Sequence[tuple[Pass, ...]] = blocks_of(shape, rank.stage)
    if row is None or shape.chunks != 1 or len(found.start) != len(blocks) - 1:
        return None
    step = rank.step(number)
    end = row.end_ns - step.start_ns
    lengths = np.concatenate([found.start, [end]]) - np.concatenate([[0], found.end])
    lengths = np.maximum(lengths, 0).astype(np.float64)
    lengths, blocks = _without_empty(lengths, blocks)
    head = float(found.start[0])
    if rank.stage == 0:
        alone = [
            length
            for length, block in zip(lengths[1:], blocks[1:], strict=True)
            if len(block) == 1 and block[0].is_forward
        ]
        begin = float(row.start_ns - step.start_ns)
        head = max(0.0, lengths[0] - float(np.mean(alone))) if alone else begin
        lengths[0] = max(0.0, lengths[0] - head)
    cpu = _divided(shape, lengths, blocks)
    whole = float(cpu.sum())
    gpu = cpu * min(1.0, row.compute_ns / whole) if whole else np.zeros_like(cpu)
    return Measured(cpu, gpu, head, float(step.end_ns - row.end_ns))


def _without_empty(
    lengths: Times, blocks: Sequence[tuple[Pass, ...]]
) -> tuple[Times, Sequence[tuple[Pass, ...]]]:
    """What the CPU does between two transfers delays the passes that come next."""
    kept: list[tuple[Pass, ...]] = []
    found: list[float] = []
    more = 0.0
    for number, (length, block) in enumerate(zip(lengths.tolist(), blocks, strict=True)):
        if not block:
            # Before the first transfer it is the head, behind the last it is the tail.
            more += length if 0 < number < len(blocks) - 1 else 0.0
            continue
        kept.append(block)
        found.append(length + more)
        more = 0.0
    return np.array(found), kept


def _divided(shape: Shape, lengths: Times, blocks: Sequence[tuple[Pass, ...]]) -> Times:
    """Blocks with a forward and a backward are divided as those alone are long."""
    alone: tuple[list[float], list[float]] = ([], [])
    for length, block in zip(lengths.tolist(), blocks, strict=True):
        if len(block) == 1:
            alone[FORWARD if block[0].is_forward else BACKWARD].append(length)
    share = _BACKWARD_SHARE
    if alone[FORWARD] and alone[BACKWARD]:
        forward, backward = (float(np.mean(one)) for one in alone)
        share = backward / (forward + backward) if forward + backward else share
    times = np.zeros((2, 1, shape.microbatches))
    for length, block in zip(lengths.tolist(), blocks, strict=True):
        weights = [1 - share if one.is_forward else share for one in block]
        for one, weight in zip(block, weights, strict=True):
            direction = FORWARD if one.is_forward else BACKWARD
            times[direction, 0, one.microbatch] = length * weight / sum(weights)
    return times
