# SPDX-License-Identifier: Apache-2.0
"""How large the traces will be, guessed from the model before anything is recorded.

The number of events of an iteration is that of its layers times its micro-batches. Measured on
H200 with megatron-core 0.19.2, local layers: 24 layers x 32 micro-batches gave 188 MB without
options, 735 MB with stacks; shapes or FLOPs added 28 percent and memory 22 (docs/benchmarks.md).
It is a guess, within a factor of two for dense models and three for mixtures of experts (an 8-layer
one made 20 MB where 8 were guessed); the first trace of a run tells the truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_trace.wording import megabytes

MB_PER_LAYER_AND_MICRO_BATCH = 0.25
HELD_MB_PER_TRACE_MB = 5.0
_ADDED = {"record_shapes": 0.28, "with_flops": 0.28, "profile_memory": 0.22, "with_stack": 2.9}

_OPERATORS = 0.45
"""Of the events of a trace without options, those of operators."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of one trace.

    Args:
        raw_mb: size of the JSON text.
        held_mb: host memory that it takes until it is written.
    """

    raw_mb: float
    held_mb: float

    def __str__(self) -> str:
        return (
            f"about {megabytes(self.raw_mb)} raw (a guess, from layers and micro-batches), "
            f"{megabytes(self.held_mb)} of host memory until it is written"
        )


def estimate(config: TorchProfileConfig, args: Any, iterations: int) -> Estimate | None:
    """Guess the trace of a window.

    Args:
        config: what is recorded.
        args: Megatron's validated arguments.
        iterations: recorded iterations of the window.

    Returns:
        None where the arguments do not tell layers or batches.
    """
    try:
        layers = args.num_layers / args.pipeline_model_parallel_size
        samples = args.global_batch_size / args.data_parallel_size
        micro_batches = samples / args.micro_batch_size
    except (AttributeError, TypeError, ZeroDivisionError):
        return None
    added = {name: share for name, share in _ADDED.items() if getattr(config, name)}
    if config.record_shapes:
        added.pop("with_flops", None)  # FLOPs are computed from shapes
    raw = MB_PER_LAYER_AND_MICRO_BATCH * layers * micro_batches * iterations
    raw *= 1 + sum(added.values()) - (_OPERATORS if config.no_operators else 0.0)
    return Estimate(raw, raw * HELD_MB_PER_TRACE_MB)
