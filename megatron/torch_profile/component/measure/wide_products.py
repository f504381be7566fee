# SPDX-License-Identifier: Apache-2.0
"""Matrix products in a wider dtype than was asked for, with the line of code that asks for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from megatron.torch_profile.component.measure.finding import Finding
from megatron.torch_profile.component.step import Step

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "convolution")
_NARROW = ("bfloat16", "float16")
_NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<")
_MOST = 5


class _Products(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
    """Notes the lines whose products are wide; forward only, a backward pass has no line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[tuple[str, str], int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _PRODUCTS:
            wide = {one.dtype for one in _pytree.tree_leaves(args) if _is_wide(one)}
            if wide and (source := _source()):
                key = (source, str(wide.pop()).removeprefix("torch."))
                self.lines[key] = self.lines.get(key, 0) + 1
        return func(*args, **(kwargs or {}))


def wide_products(step: Step, asked: str) -> Iterator[Finding]:
    """One step, without torch.compile.

    Args:
        asked: the dtype in which products were to be.
    """
    if asked not in _NARROW:
        return
    step.prepare()
    mode = _Products()
    with mode:
        step.eagerly()
    for (source, dtype), count in list(mode.lines.items())[:_MOST]:
        products = "a matrix product" if count == 1 else f"{count} matrix products"
        said = f"{products} in {dtype} where {asked} was asked for."
        yield Finding("dtype_fallback", said[0].upper() + said[1:], source)


def _is_wide(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.dtype in (torch.float32, torch.float64)


def _source() -> str:
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_NOT_THE_USERS):
            return f"{Path(file).name}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""
