# SPDX-License-Identifier: Apache-2.0
"""Memory that the fullest rank leaves unused, where the run could use it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from megatron.torch_trace.allocator.findings import MemoryFinding
from megatron.torch_trace.allocator.ranks.shape import Shape
from megatron.torch_trace.allocator.ranks.stages import RankMemory, name_of
from megatron.torch_trace.wording import percent, size

_UNUSED = 0.20
"""Of the GPU, on the rank that uses most of it."""
_TRIAL = 0.10
"""A run that never has so much of the GPU is a trial: nobody chose its sizes for this GPU."""


def unused_headroom(ranks: Sequence[RankMemory]) -> Iterator[MemoryFinding]:
    """A fifth of the GPU is left to CUDA, and there is a way to use it."""
    known = [
        (one.free, one.facts.capacity, one)
        for one in ranks
        if one.free is not None and one.facts.capacity
    ]
    if not known or len(known) != len(ranks):
        return
    free, capacity, one = min(known, key=lambda found: found[0])
    if free < _UNUSED * capacity or capacity - free < _TRIAL * capacity:
        return
    uses = _uses(one.facts.shape) if one.megatron else _IN_ANY_LOOP
    if not uses:
        return
    whose = "Torch" if len(ranks) == 1 else f"{name_of(one).capitalize()}, the fullest one,"
    yield MemoryFinding(
        "unused_headroom",
        "low",
        f"{whose} had at most {size(capacity - free)} of the GPU's {size(capacity)}: "
        f"{size(free)} ({percent(free / capacity)}) are left.",
        f"Use them: {', '.join(uses)}{_FIT if one.megatron else ''}.",
        {
            "unused_bytes": free,
            "capacity_bytes": capacity,
            "used_bytes": capacity - free,
        },
    )


_FIT = "; `torch-trace memory --fit` says what fits"
"""It reads Megatron's arguments."""
_IN_ANY_LOOP = ["a larger micro-batch", "less recomputation", "less sharding of the model"]


def _uses(shape: Shape | None) -> list[str]:
    """What a run could do with more memory, and does not do yet."""
    if shape is None:
        return [
            "a larger `--micro-batch-size`",
            "less recomputation (`--recompute-granularity`)",
            "fewer stages or less tensor parallelism",
        ]
    found = []
    # A micro-batch that is the whole batch of a replica cannot grow.
    if shape.microbatches is None or shape.microbatches > 1:
        found.append(f"a `--micro-batch-size` larger than {shape.micro_batch}")
    if shape.recompute:
        found.append(f"less recomputation (`--recompute-granularity {shape.recompute}` now)")
    if shape.pipeline > 1:
        found.append(f"fewer stages than {shape.pipeline}")
    if shape.tensor > 1:
        found.append(f"`--tensor-model-parallel-size` less than {shape.tensor}")
    return found
