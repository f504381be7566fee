# SPDX-License-Identifier: Apache-2.0
"""Who holds memory at one moment: allocations with the same stack put together."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from megatron.torch_trace.allocator.allocations import Allocations
from megatron.torch_trace.allocator.purpose.categories import CATEGORIES, Category
from megatron.torch_trace.allocator.stack_table import Stack, StackTable, is_python, shortened
from megatron.torch_trace.format.integer_arrays import Column, Ints

_OF_TORCH = ("/torch/", "torch/nn/", "torchinductor")
_OF_ALL_MODULES = (*_OF_TORCH, "core/tensor_parallel/layers.py", "core/utils.py", "core/fusions/")
"""Code that many modules call: the frame outside of it says more."""
NO_STACK = "no stack recorded"
"""In the place of a holder's stack: it is older than the history, or there is no history, or a
thread without Python allocated it (autograd's own)."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Memory in use with one call stack.

    Args:
        size: bytes.
        blocks: how many allocations.
        category: what it is for.
        module: the innermost code that is one module's, `attention.py forward`; empty where no
            stack was recorded.
        stack: Python frames `file:line function`, the innermost first, without those that only
            pass a call on; frames of C++ where there are no others.
    """

    size: int
    blocks: int
    category: Category
    module: str
    stack: Stack


def holders_of(
    allocations: Allocations, categories: Column, stacks: StackTable, rows: Ints
) -> tuple[Holder, ...]:
    """Holders of the allocations in `rows`, the largest first."""
    found: dict[tuple[int, Stack], list[int]] = defaultdict(lambda: [0, 0])
    readable: dict[int, Stack] = {}
    for row in rows:
        number = int(allocations.stack[row])
        if number not in readable:
            readable[number] = shortened(stacks.python(number))
        one = found[int(categories[row]), readable[number]]
        one[0] += int(allocations.size[row])
        one[1] += 1
    holders = [
        Holder(size, blocks, CATEGORIES[category], _module(stack), stack)
        for (category, stack), (size, blocks) in found.items()
    ]
    return tuple(sorted(holders, key=lambda one: (-one.size, one.stack)))


def by_category(allocations: Allocations, categories: Column, rows: Ints) -> dict[Category, int]:
    """Bytes of the allocations in `rows` by category, in the order of `Category`."""
    totals = dict.fromkeys(CATEGORIES, 0)
    for number, category in enumerate(CATEGORIES):
        totals[category] = int(allocations.size[rows][categories[rows] == number].sum())
    return totals


def _module(stack: Stack) -> str:
    """`attention.py get_query_key_value_tensors`: the innermost frame that says which module."""
    for passed in (_OF_ALL_MODULES, _OF_TORCH):
        outside = [one for one in stack if not any(part in one for part in passed)]
        if outside and is_python(outside[0]):
            call_site, _, function = outside[0].rpartition(" ")
            return f"{call_site.rpartition(':')[0].rpartition('/')[2]} {function}"
    return stack[0] if stack else ""
