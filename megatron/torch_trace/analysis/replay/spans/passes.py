# SPDX-License-Identifier: Apache-2.0
"""How long the passes of a pipeline take: what the graph of spans is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.replay.spans.orders import Shape

Times = npt.NDArray[np.float64]

FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True, slots=True)
class Passes:
    """Times of passes, ns. A copy of the model in one step is a *lane*: lanes meet at the end only.

    Args:
        shape: of the pipeline.
        cpu, gpu: by lane, stage, direction (`FORWARD`, `BACKWARD`), chunk and micro-batch.
        head: by lane and stage, from the start of the step to the first pass.
        tail: by step, from the end of the last pass to the end of the step: the rest of the
            gradients' reduction, and the optimizer.
        step_of: by lane, its position in `recorded`.
        recorded: by step, the iteration as recorded.
        transfer: of one activation to the next stage.
        is_blocking: the CPU waits at every send and receive until the GPU is through with it.
        ranks: by lane and stage, the recorded ranks whose mean it is.
        layers: by stage; None where nothing tells.
        sending: of the CPU, to launch one send or receive, or both at once: in `cpu` of each pass.
    """

    shape: Shape
    cpu: Times
    gpu: Times
    head: Times
    tail: Times
    step_of: npt.NDArray[np.int64]
    recorded: Times
    transfer: float
    is_blocking: bool
    ranks: tuple[tuple[tuple[int, ...], ...], ...]
    layers: tuple[int, ...] | None = None
    sending: float = 0.0

    @property
    def nodes(self) -> int:
        """Of the graph."""
        return 2 * self.cpu.size
