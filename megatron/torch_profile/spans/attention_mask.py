# SPDX-License-Identifier: Apache-2.0
"""The mask of a model's attention, which newer Transformer Engines hide in their calls."""

from __future__ import annotations

from typing import Any


def is_causal(model: Any) -> bool | None:
    """Whether all attention has a causal mask; None if nothing tells it.

    Args:
        model: Megatron's list of model chunks.
    """
    try:
        masks = {
            # Megatron's modules have an enumeration, Transformer Engine's its name.
            str(getattr(module.attn_mask_type, "name", module.attn_mask_type))
            for chunk in model
            for module in chunk.modules()
            if hasattr(module, "attn_mask_type")
        }
    except Exception:  # a model of another make; the trace goes without
        return None
    return masks == {"causal"} if masks else None
