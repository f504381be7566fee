# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding of a query: Megatron's own function with its own frequencies."""

from __future__ import annotations

from typing import Any

import torch

from megatron.torch_profile.component.component import Component
from megatron.torch_profile.component.ready.attention import head_size
from megatron.torch_profile.component.ready.layers import config_of
from megatron.torch_profile.component.ready.ready_case import ReadyCase


def rotary(ready: ReadyCase) -> Component:
    """`[sequence, micro-batch, heads, head size]`."""
    from megatron.core.models.common.embeddings import rotary_pos_embedding

    config = config_of(ready)
    size = head_size(ready)
    made = rotary_pos_embedding.RotaryEmbedding(
        size, 1.0, use_cpu_initialization=ready.device == "cpu"
    )
    frequencies = made(ready.sizes["sequence"]).to(ready.device)
    apply: Any = rotary_pos_embedding.apply_rotary_pos_emb

    def turned(query: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = apply(query, frequencies, config)
        return result

    return Component(turned, (ready.normal("sequence", "micro_batch", "heads", size),))
