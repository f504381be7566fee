# SPDX-License-Identifier: Apache-2.0
"""Shapes of an operator's inputs, in words."""

from __future__ import annotations

from megatron.torch_trace.format.json_text import value_of
from megatron.torch_trace.wording import NONE


def shape_in_words(text: str) -> str:
    """`[[2048, 2048], [2048, 8192], []]` -> `2048x2048, 2048x8192`; scalars are left out."""
    if not text:
        return NONE
    try:
        sizes = value_of(text)
    except ValueError:
        return text
    parts = [_dims(one) for one in sizes if one]
    return ", ".join(parts) or "scalars"


def _dims(sizes: object) -> str:
    if isinstance(sizes, list) and sizes and isinstance(sizes[0], list):
        return f"[{', '.join(_dims(one) for one in sizes)}]"
    return "x".join(map(str, sizes)) if isinstance(sizes, list) else str(sizes)
