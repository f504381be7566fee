# SPDX-License-Identifier: Apache-2.0
"""The work of one step: FLOPs of its matrix products, and the bytes that it cannot avoid."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

from megatron.torch_profile.component.step import Step


@dataclass(frozen=True, slots=True)
class Work:
    """What one step does.

    Args:
        flops: of matrix products, convolutions and attention, as torch counts them; of a fused
            attention with a causal mask half of it, as Megatron counts.
        bytes: what must be read and written if everything else stays on the chip: inputs,
            parameters and outputs once; with a backward pass inputs, parameters and the outputs'
            gradients once more, and the gradients of inputs and parameters.
    """

    flops: int
    bytes: int


def _grouped(a: Any, b: Any, *args: Any, **kwargs: Any) -> int:
    """Each row of `a` meets one of the matrices, or each group of rows makes one."""
    return 2 * int(a[0]) * int(a[1]) * int(b[-1])


def _attention(causal_at: int) -> Callable[..., int]:
    """Of a fused kernel, which leaves out the half that a causal mask hides.

    Args:
        causal_at: position of the flag behind query, key and value.
    """

    def count(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
        whole = int(flop_counter.sdpa_flop_count(q, k, v))
        return whole // 2 if _is_causal(args, kwargs, causal_at) else whole

    return count


def _attention_backward(causal_at: int) -> Callable[..., int]:
    """The same of its backward pass, where the output's gradient comes first."""

    def count(gradient: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
        whole = int(flop_counter.sdpa_backward_flop_count(gradient, q, k, v))
        return whole // 2 if _is_causal(args, kwargs, causal_at) else whole

    return count


def _is_causal(args: tuple[Any, ...], kwargs: dict[str, Any], position: int) -> bool:
    told = args[position] if position < len(args) else kwargs.get("is_causal", False)
    return told is True


_UNKNOWN_TO_TORCH = {
    getattr(torch.ops.aten, name): count
    for name, count in (
        ("_grouped_mm", _grouped),
        ("_scaled_dot_product_flash_attention", _attention(1)),
        ("_scaled_dot_product_efficient_attention", _attention(3)),
        ("_scaled_dot_product_cudnn_attention", _attention(3)),
        ("_scaled_dot_product_flash_attention_for_cpu", _attention(1)),
        ("_scaled_dot_product_flash_attention_backward", _attention_backward(7)),
        ("_scaled_dot_product_efficient_attention_backward", _attention_backward(7)),
        ("_scaled_dot_product_cudnn_attention_backward", _attention_backward(10)),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", _attention_backward(3)),
    )
    if hasattr(torch.ops.aten, name)
}
"""Operators that torch's counter leaves out, or counts the masked half of."""


def work_of(step: Step) -> Work | None:
    """Count one step, which runs without torch.compile; None where torch cannot count it."""
    step.prepare()
    counter = FlopCounterMode(display=False, custom_mapping=_UNKNOWN_TO_TORCH)
    try:
        with counter:
            output = step.eagerly()
    except (NotImplementedError, TypeError, RuntimeError):
        return None
    component = step.component
    tensors = [
        one
        for one in torch.utils._pytree.tree_leaves((component.inputs, dict(component.keywords)))
        if isinstance(one, torch.Tensor)
    ]
    outputs = [
        one for one in torch.utils._pytree.tree_leaves(output) if isinstance(one, torch.Tensor)
    ]
    read = _bytes([*tensors, *component.parameters()])
    written = _bytes(outputs)
    gradients = _bytes(
        one.grad for one in (*tensors, *component.parameters()) if one.grad is not None
    )
    again = read + written + gradients if step.goes_backward else 0
    return Work(int(counter.get_total_flops()), read + written + again)


def with_flops(work: Work | None, flops: int | None) -> Work | None:
    """The work with FLOPs that somebody else counted, if these are more."""
    return replace(work, flops=flops) if work and flops and flops > work.flops else work


def _bytes(tensors: Iterable[Any]) -> int:
    """Of elements that are there once: a view or an expanded tensor has those of its storage."""
    found: dict[int, int] = {}
    for one in tensors:
        storage = one.untyped_storage()
        own = min(one.numel() * one.element_size(), storage.nbytes())
        found[storage.data_ptr()] = max(found.get(storage.data_ptr(), 0), own)
    return sum(found.values())
