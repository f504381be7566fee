# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a process's memory, and what to do about it: one rule, one function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from megatron.torch_trace.allocator.answer import MemoryAnswer
from megatron.torch_trace.allocator.purpose.categories import Category
from megatron.torch_trace.wording import counted, number, percent, size

_SCATTERED_SHARE = 0.10
_LEAST = 1 << 28
"""Bytes below which free memory between blocks is no trouble: 256 MiB."""
_LEAST_GROWTH = 1 << 16
_OPTIMIZER_SHARE = 0.20
_CUDA_ALLOCATIONS = 4


@dataclass(frozen=True, slots=True)
class MemoryFinding:
    """One thing to know.

    Args:
        code: its slug.
        severity: high, medium or low.
        sentence: what is so.
        advice: what to do.
        evidence: the numbers.
    """

    code: str
    severity: str
    sentence: str
    advice: str
    evidence: dict[str, Any]


def memory_findings(answer: MemoryAnswer, *, megatron: bool = True) -> tuple[MemoryFinding, ...]:
    """All that is wrong, the worst first.

    Args:
        answer: of one device.
        megatron: whether Megatron's loop trains; to others its flags are examples.
    """
    found = [one for rule in _RULES for one in rule(answer, megatron)]
    order = ("high", "medium", "low")
    return tuple(sorted(found, key=lambda one: order.index(one.severity)))


def flags(text: str, *, megatron: bool) -> str:
    """`(...)` around flags of Megatron, which says whose they are to who uses something else."""
    return f"({text})" if megatron else f"(in Megatron: {text})"


def _out_of_memory(answer: MemoryAnswer, megatron: bool) -> Iterator[MemoryFinding]:
    if not answer.out_of_memory:
        return
    last = answer.out_of_memory[-1]
    free = answer.fragmentation.scattered if answer.fragmentation else 0
    where = f" ({last.where})" if last.where else f" in {last.stack[0]}" if last.stack else ""
    # What CUDA has free can be mapped behind them; more than was asked for is of another's limit.
    mapped = last.device_free if last.device_free < last.requested else 0
    fits = free + mapped >= last.requested
    advice = (
        "The free pieces and what the GPU had free would have been enough, were they one: set "
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`."
        if fits and not answer.expandable
        else _less_memory(megatron)
    )
    nameless = answer.categories.get(Category.UNKNOWN, 0)
    if not answer.entries and nameless:
        advice += (
            f" No history was kept, so nothing tells which code holds the {size(nameless)} that "
            "have no owner, activations and temporaries: record the failing iteration with "
            "`--torch-profile-memory-snapshot` (`--torch-profile-iterations`) to have it named."
        )
    yield MemoryFinding(
        "out_of_memory",
        "high",
        f"A request for {size(last.requested)} failed{where}: the GPU had "
        f"{size(last.device_free)} free, the allocator held {size(free)} between blocks in use.",
        advice,
        {
            "requested_bytes": last.requested,
            "device_free_bytes": last.device_free,
            "scattered_bytes": free,
            "failures": len(answer.out_of_memory),
        },
    )


def _less_memory(megatron: bool) -> str:
    if megatron:
        return (
            "Hold less: `--recompute-granularity selective`, a smaller `--micro-batch-size`, "
            "`--use-distributed-optimizer`, `--sequence-parallel` with tensor parallelism, more "
            "stages."
        )
    return (
        "Hold less: recompute activations, make the micro-batches smaller, shard the optimizer "
        "state, or spread the model over more GPUs (in Megatron: `--recompute-granularity "
        "selective`, `--micro-batch-size`, `--use-distributed-optimizer`, `--sequence-parallel`)."
    )


def _growth(answer: MemoryAnswer, _megatron: bool) -> Iterator[MemoryFinding]:
    grown = [one for one in answer.growth if one.size_per_step >= _LEAST_GROWTH]
    if not grown:
        return
    worst = grown[0]
    total = sum(one.size_per_step for one in grown)
    unit = "step" if worst.marked else "eighth of the history"
    others = f" and {counted(len(grown) - 1, 'other stack')}" if len(grown) > 1 else ""
    yield MemoryFinding(
        "memory_growth",
        "high",
        f"Memory grows by {size(total)} a {unit} and is not given back: {worst.stack[0]}{others}.",
        "Look for what keeps these tensors: a list of losses without `.item()` or `.detach()`, a "
        "cache without a bound, hooks that store outputs.",
        {"bytes_per_step": total, "steps": worst.steps, "stack": list(worst.stack)},
    )


def _scattered(answer: MemoryAnswer, _megatron: bool) -> Iterator[MemoryFinding]:
    one = answer.fragmentation
    if one is None or one.scattered < _LEAST or one.scattered_share < _SCATTERED_SHARE:
        return
    advice = (
        "Segments grow already; look at allocations of very different lifetimes."
        if answer.expandable
        else "Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`."
    )
    yield MemoryFinding(
        "memory_fragmentation",
        "medium",
        f"{size(one.scattered)} of {size(one.reserved)} reserved ({percent(one.scattered_share)}) "
        f"lie between blocks in use; the largest free piece has {size(one.largest_free)}.",
        advice,
        {
            "scattered_bytes": one.scattered,
            "reserved_bytes": one.reserved,
            "largest_free_bytes": one.largest_free,
        },
    )


def _cuda_allocations(answer: MemoryAnswer, _megatron: bool) -> Iterator[MemoryFinding]:
    cuda = answer.cuda
    if cuda.steady < _CUDA_ALLOCATIONS or cuda.steady_seconds <= 0:
        return
    when = "After the first step" if cuda.marked else "In the second half of the history"
    yield MemoryFinding(
        "cuda_allocations",
        "medium",
        f"{when} the allocator asked CUDA for memory {counted(cuda.steady, 'time')} in "
        f"{number(cuda.steady_seconds)} s; each request can hold the GPU up.",
        "In the steady state there should be none: keep shapes equal from step to step, or set "
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.",
        {"cuda_allocations": cuda.steady, "per_second": cuda.steady / cuda.steady_seconds},
    )


def _allocator_retries(answer: MemoryAnswer, megatron: bool) -> Iterator[MemoryFinding]:
    cuda = answer.cuda
    if not cuda.retries:
        return
    where = f", the last time for {cuda.retry_stack[0]}" if cuda.retry_stack else ""
    yield MemoryFinding(
        "allocator_retries",
        "high",
        f"CUDA had no memory left {counted(cuda.retries, 'time')}: the allocator waited for the "
        f"GPU, gave {size(cuda.retry_bytes)} back and asked again{where}.",
        f"The GPU is full, and such a step is slow. {_less_memory(megatron)}",
        {"retries": cuda.retries, "given_back_bytes": cuda.retry_bytes},
    )


def _optimizer_peak(answer: MemoryAnswer, megatron: bool) -> Iterator[MemoryFinding]:
    passing = sum(
        one.size
        for one in answer.holders
        if one.category is Category.TEMPORARIES and any("optim" in frame for frame in one.stack)
    )
    if not answer.peak_bytes or passing < _OPTIMIZER_SHARE * answer.peak_bytes:
        return
    yield MemoryFinding(
        "optimizer_peak",
        "medium",
        f"The optimizer's step is the peak: {size(passing)} of {size(answer.peak_bytes)} are its "
        "temporaries.",
        "Use a fused optimizer (Apex or Transformer Engine), or `--use-distributed-optimizer`."
        if megatron
        else "Use a fused optimizer (such as `fused=True` of torch.optim), or shard its state "
        "(in Megatron: `--use-distributed-optimizer`).",
        {"temporary_bytes": passing, "peak_bytes": answer.peak_bytes},
    )


_RULES: tuple[Callable[[MemoryAnswer, bool], Iterator[MemoryFinding]], ...] = (
    _out_of_memory,
    _growth,
    _scattered,
    _allocator_retries,
    _cuda_allocations,
    _optimizer_peak,
)
