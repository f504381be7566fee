# SPDX-License-Identifier: Apache-2.0
"""Norms over the hidden size: torch's own, as separate operators, or Transformer Engine's."""

from __future__ import annotations

import torch
from torch import nn

from megatron.torch_profile.component.component import Component
from megatron.torch_profile.component.ready.engine import transformer_engine
from megatron.torch_profile.component.ready.ready_case import ReadyCase

_INPUT = ("sequence", "micro_batch", "hidden")
_IMPLEMENTATIONS = ("torch", "operators", "transformer_engine")


class OperatorRMSNorm(nn.Module):  # type: ignore[misc,unused-ignore]
    """The norm operator by operator, as models that do not know a fused one write it."""

    def __init__(self, hidden: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """In fp32, as LLaMA's own."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return wide.type_as(x) * self.weight


class OperatorLayerNorm(nn.Module):  # type: ignore[misc,unused-ignore]
    """The same with a mean."""

    def __init__(self, hidden: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """In fp32."""
        wide = x.float()
        centred = wide - wide.mean(-1, keepdim=True)
        normed = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + self.eps)
        return normed.type_as(x) * self.weight + self.bias


def rms_norm(ready: ReadyCase) -> Component:
    """`torch.nn.RMSNorm` and what does the same."""
    return _norm(ready, {"torch": nn.RMSNorm, "operators": OperatorRMSNorm}, "RMSNorm")


def layer_norm(ready: ReadyCase) -> Component:
    """`torch.nn.LayerNorm` and what does the same."""
    return _norm(ready, {"torch": nn.LayerNorm, "operators": OperatorLayerNorm}, "LayerNorm")


def _norm(ready: ReadyCase, kinds: dict[str, type[nn.Module]], of_engine: str) -> Component:
    ready.others()
    chosen = ready.choice("implementation", _IMPLEMENTATIONS)
    kind = kinds.get(chosen) or getattr(transformer_engine(), of_engine)
    module = kind(ready.sizes["hidden"], eps=float(ready.case.arguments.get("eps", 1e-5)))
    module.to(device=ready.device, dtype=ready.dtype)
    return Component(module, (ready.normal(*_INPUT),), module=module)
