# SPDX-License-Identifier: Apache-2.0
"""Attention alone, from query, key and value: unfused, or by one of torch's fused kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's documents call it so
from torch.nn.attention import SDPBackend, sdpa_kernel

from megatron.torch_profile.component.component import Component
from megatron.torch_profile.component.ready.ready_case import ReadyCase
from megatron.torch_trace.errors import UsageError

_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
KERNELS = ("sdpa", "unfused", *_BACKENDS)


def core(ready: ReadyCase) -> Component:
    """`[micro_batch, heads, sequence, head size]` three times."""
    ready.others()
    kernel, causal = ready.choice("kernel", KERNELS), ready.switch("causal", True)
    size = head_size(ready)
    shape = ("micro_batch", "heads", "sequence", size)
    inputs = tuple(ready.normal(*shape) for _ in range(3))
    return Component(attend(kernel, causal), inputs, around=around(kernel))


def head_size(ready: ReadyCase) -> int:
    """Of one head.

    Raises:
        UsageError: the hidden size is no multiple.
    """
    hidden, heads = ready.sizes["hidden"], ready.sizes["heads"]
    if hidden % heads:
        raise UsageError(f"sizes.heads: {heads}; hidden {hidden} must be a multiple of it.")
    return hidden // heads


def attend(kernel: str, causal: bool) -> Callable[..., torch.Tensor]:
    """A function of query, key, value."""

    def unfused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if causal:
            after = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(after, float("-inf"))
        return scores.softmax(-1) @ v

    def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return unfused if kernel == "unfused" else fused


def around(kernel: str) -> Callable[[], AbstractContextManager[Any]]:
    """In which only the chosen kernel is allowed."""
    if kernel not in _BACKENDS:
        return nullcontext
    return lambda: sdpa_kernel(_BACKENDS[kernel])
