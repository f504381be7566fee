# SPDX-License-Identifier: Apache-2.0
"""Pipelines built by hand, with passes of a known length."""

from __future__ import annotations

import numpy as np

from megatron.torch_trace.analysis.replay.spans.orders import Shape
from megatron.torch_trace.analysis.replay.spans.passes import Passes


def pipeline(
    shape: Shape,
    *,
    forward: float,
    backward: float,
    gpu: float = 0.0,
    copies: int = 1,
    is_blocking: bool = True,
    transfer: float = 0.0,
    head: float = 0.0,
    tail: float = 0.0,
    layers: tuple[int, ...] | None = None,
) -> Passes:
    """Passes of equal length on all stages; a stage's chunks share `forward` and `backward`.

    Args:
        gpu: how long the GPU takes for what the CPU takes 1 for.
        the others: see `Passes`.
    """
    cpu = np.zeros((copies, shape.stages, 2, shape.chunks, shape.microbatches))
    cpu[:, :, 0] = forward / shape.chunks
    cpu[:, :, 1] = backward / shape.chunks
    ranks = tuple(
        tuple((copy * shape.stages + stage,) for stage in range(shape.stages))
        for copy in range(copies)
    )
    return Passes(
        shape=shape,
        cpu=cpu,
        gpu=cpu * gpu,
        head=np.full((copies, shape.stages), head),
        tail=np.array([tail]),
        step_of=np.zeros(copies, dtype=np.int64),
        recorded=np.array([1.0]),
        transfer=transfer,
        is_blocking=is_blocking,
        ranks=ranks,
        layers=layers,
    )
