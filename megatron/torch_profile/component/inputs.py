# SPDX-License-Identifier: Apache-2.0
"""Tensors of the shapes that a config asks for, the same in each variant of one size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from megatron.torch_profile.component.config import Input, nearest
from megatron.torch_trace.errors import UsageError


def tensors(
    wanted: Sequence[Input], sizes: Mapping[str, int], dtype: str, device: str, seed: int
) -> tuple[torch.Tensor, ...]:
    """The inputs of one step.

    Args:
        wanted: one after the other.
        sizes: by name.
        dtype: of those that say none.
        seed: the same one gives the same numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    return tuple(_tensor(one, n, sizes, dtype, device, generator) for n, one in enumerate(wanted))


def with_sizes(value: Any, sizes: Mapping[str, int]) -> Any:
    """Arguments in which `$hidden` is the size of this name."""
    if isinstance(value, str) and value.startswith("$"):
        return _size(value[1:], sizes, f"argument {value}")
    if isinstance(value, dict):
        return {key: with_sizes(one, sizes) for key, one in value.items()}
    if isinstance(value, list):
        return [with_sizes(one, sizes) for one in value]
    return value


def _tensor(
    one: Input,
    position: int,
    sizes: Mapping[str, int],
    dtype: str,
    device: str,
    generator: torch.Generator,
) -> torch.Tensor:
    where = f"inputs[{position}]"
    shape = [_size(part, sizes, f"{where}.shape") for part in one.shape]
    kind: torch.dtype = getattr(torch, one.dtype or ("int64" if one.below is not None else dtype))
    if one.below is not None or not kind.is_floating_point:
        most = _size(one.below if one.below is not None else 2, sizes, f"{where}.below")
        return torch.randint(0, most, shape, generator=generator).to(device=device, dtype=kind)
    made = torch.randn(shape, generator=generator).to(device=device, dtype=kind)
    return made.requires_grad_(one.gradient)


def _size(part: int | str, sizes: Mapping[str, int], where: str) -> int:
    if isinstance(part, str):
        if part not in sizes:
            raise UsageError(f"{where}: there is no size `{part}`{_sizes(part, sizes)}")
        return sizes[part]
    if part < 0:
        raise UsageError(f"{where}: {part}; must be 0 or more.")
    return part


def _sizes(part: str, sizes: Mapping[str, int]) -> str:
    return nearest(part, list(sizes)) if sizes else f"; write `sizes: {{{part}: 128}}`."
