# SPDX-License-Identifier: Apache-2.0
"""A request that a GPU had no memory for, in a paragraph of the log and as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from megatron.torch_profile.memory.live_bytes import LiveBytes
from megatron.torch_profile.memory.standing import Standing
from megatron.torch_trace.allocator.purpose.categories import Category
from megatron.torch_trace.wording import percent, size

_HOLDERS = 3
_MODULES = 50
_OUTSIDE = 0.1
"""Of the GPU: more than that outside of torch's allocator is worth a word."""
_BY_BACKWARD = (Category.ACTIVATIONS, Category.TEMPORARIES, Category.UNKNOWN, Category.OTHER)
"""What comes and goes with micro-batches; what has no owner and no stack is no model."""


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """An out-of-memory error, as it was seen before it was raised.

    Args:
        rank: global rank.
        device: index of the GPU.
        iteration: global iteration; None where unknown.
        requested: bytes.
        total: bytes that the process may have of the GPU.
        free: bytes that CUDA has free.
        standing: where training stood.
        live: what held memory.
    """

    rank: int
    device: int
    iteration: int | None
    requested: int
    total: int
    free: int
    standing: Standing
    live: LiveBytes

    @property
    def outside(self) -> int:
        """Bytes in use on the GPU that torch's allocator does not have."""
        return max(0, self.total - self.free - self.live.reserved)

    def paragraph(self, args: Any) -> str:
        """The paragraph, a line a fact; its subject, the rank, stands before it.

        Args:
            args: Megatron's arguments, for advice.
        """
        live = self.live
        unused = live.reserved - live.in_use
        lines = [
            f"asked for {size(self.requested)}{self._where()}, which GPU {self.device} lacks",
            f"{size(self.free)} of {size(self.total)} are free; torch has {size(live.reserved)} of "
            f"it, tensors use {size(live.in_use)}"
            + (f"; {size(self.outside)} are outside of torch" if self._much_outside() else ""),
        ]
        if unused > 0:
            lines.append(
                f"torch has {size(unused)} that no tensor uses, "
                f"{size(live.fragmentation.scattered)} of it between blocks in use; the largest "
                f"free piece has {size(live.fragmentation.largest_free)}"
            )
        held = [
            f"{words} {size(held)} ({percent(held / live.in_use)})"
            for words, held in live.named[:_HOLDERS]
            if live.in_use
        ]
        if held:
            lines.append(f"largest holders: {', '.join(held)}")
        advice = list(self._advice(args))
        if advice:
            lines.append(f"to try: {'; '.join(advice)}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """The same as data, with all holders."""
        live = self.live
        return {
            "schema": 1,
            "rank": self.rank,
            "device": self.device,
            "iteration": self.iteration,
            "phase": self.standing.phase,
            "module": self.standing.module,
            "stack": list(self.standing.stack),
            "requested_bytes": self.requested,
            "total_bytes": self.total,
            "free_bytes": self.free,
            "reserved_bytes": live.reserved,
            "in_use_bytes": live.in_use,
            "outside_bytes": self.outside,
            "largest_free_piece_bytes": live.fragmentation.largest_free,
            "expandable_segments": live.expandable,
            "categories": {category.value: held for category, held in live.categories.items()},
            "modules": dict(list(live.modules.items())[:_MODULES]),
            "history": live.has_stacks,
        }

    def _where(self) -> str:
        parts = [
            f"iteration {self.iteration}" if self.iteration is not None else "",
            self.standing.phase,
            self.standing.module,
        ]
        said = ", ".join(filter(None, parts))
        return f" ({said})" if said else ""

    def _much_outside(self) -> bool:
        return self.outside > _OUTSIDE * self.total

    def _advice(self, args: Any) -> Iterator[str]:
        live = self.live
        unused = live.reserved - live.in_use
        if unused + self.free >= self.requested and not live.expandable:
            yield "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (the free pieces would do)"
        held = {category: live.categories.get(category, 0) for category in Category}
        passing = sum(held[category] for category in _BY_BACKWARD)
        state = held[Category.OPTIMIZER_STATE]
        model = held[Category.PARAMETERS] + held[Category.GRADIENTS]
        groups = [
            (passing, _for_activations),
            (state, _for_optimizer_state),
            (model, _for_parameters),
        ]
        # What is worth most first; what holds less than a fifth would not help.
        for group, advice in sorted(groups, key=lambda one: -one[0]):
            if live.in_use and group >= live.in_use / 5:
                yield from advice(args)
        if self._much_outside():
            yield "look for other processes on this GPU (nvidia-smi)"


def _for_activations(args: Any) -> Iterator[str]:
    batch = getattr(args, "micro_batch_size", None)
    granularity = getattr(args, "recompute_granularity", "unknown")
    if isinstance(batch, int) and batch > 1:
        yield f"--micro-batch-size smaller than {batch}"
    if granularity is None:
        yield "--recompute-granularity selective"
    elif granularity == "selective":
        yield "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    if (
        getattr(args, "sequence_parallel", None) is False
        and getattr(args, "tensor_model_parallel_size", 1) > 1
    ):
        yield "--sequence-parallel"
    if getattr(args, "context_parallel_size", None) == 1 and _long(args):
        yield "--context-parallel-size 2"


def _for_optimizer_state(args: Any) -> Iterator[str]:
    distributed = getattr(args, "use_distributed_optimizer", None)
    if distributed is False and getattr(args, "data_parallel_size", 1) > 1:
        yield "--use-distributed-optimizer"
    elif getattr(args, "optimizer_cpu_offload", None) is False:
        yield "--optimizer-cpu-offload"


def _for_parameters(args: Any) -> Iterator[str]:
    tensor = getattr(args, "tensor_model_parallel_size", None)
    pipeline = getattr(args, "pipeline_model_parallel_size", None)
    if isinstance(tensor, int) and isinstance(pipeline, int):
        yield (
            f"--tensor-model-parallel-size more than {tensor}, or "
            f"--pipeline-model-parallel-size more than {pipeline}"
        )


def _long(args: Any) -> bool:
    length = getattr(args, "seq_length", None)
    return isinstance(length, int) and length >= 16_384
