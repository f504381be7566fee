# SPDX-License-Identifier: Apache-2.0
"""All experts of a rank in one grouped matrix product of torch, in the place of Megatron's loop."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's documents call it so
from torch import nn

_grouped: Any = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


class GroupedExperts(nn.Module):  # type: ignore[misc,unused-ignore]
    """Takes what Megatron's SequentialMLP takes.

    Args:
        count: experts of this rank.
        config: Megatron's TransformerConfig.
    """

    def __init__(self, count: int, config: Any) -> None:
        super().__init__()
        hidden, ffn = config.hidden_size, config.moe_ffn_hidden_size
        wide = 2 * ffn if config.gated_linear_unit else ffn
        self.first = nn.Parameter(config.init_method(torch.empty(count, hidden, wide)))
        self.second = nn.Parameter(config.output_layer_init_method(torch.empty(count, ffn, hidden)))
        self.activation, self.gated = config.activation_func, config.gated_linear_unit

    def forward(
        self, tokens: torch.Tensor, counts: torch.Tensor, probabilities: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        """Tokens in the order of their experts, and how many each expert has."""
        ends = counts.to(tokens.device).cumsum(0).to(torch.int32)
        between = _grouped(tokens, self.first, offs=ends)
        if self.gated:
            gate, value = between.chunk(2, dim=-1)
            between = self.activation(gate) * value
        else:
            between = self.activation(between)
        between = (between * probabilities.unsqueeze(-1)).to(tokens.dtype)
        return _grouped(between, self.second, offs=ends), None
