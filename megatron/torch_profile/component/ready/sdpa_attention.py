# SPDX-License-Identifier: Apache-2.0
"""torch's fused attention in the place of Megatron's unfused one, for its SelfAttention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's documents call it so
from torch import nn


class SdpaAttention(nn.Module):  # type: ignore[misc,unused-ignore]
    """Takes what Megatron's DotProductAttention takes; causal, without dropout."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.config = config

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """From `[sequence, micro-batch, heads, head size]` to `[sequence, micro-batch, hidden]`."""
        q, k, v = (one.permute(1, 2, 0, 3) for one in (query, key, value))
        groups = q.shape[1] != k.shape[1]
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=groups)
        return out.permute(2, 0, 1, 3).flatten(2)
