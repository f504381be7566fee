# SPDX-License-Identifier: Apache-2.0
"""Two forms of one function, for activation.yaml: what a team measures of its own model code."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's documents call it so


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """Half of the last dimension gates the other half."""
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


def swiglu_by_hand(x: torch.Tensor) -> torch.Tensor:
    """The same, operator by operator."""
    gate, value = x.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * value
