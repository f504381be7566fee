# SPDX-License-Identifier: Apache-2.0
"""All that is in use at one moment, by category and by holder."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_trace.allocator.allocations import Allocations
from megatron.torch_trace.allocator.holders import Holder, by_category, holders_of
from megatron.torch_trace.allocator.purpose.categories import Category
from megatron.torch_trace.allocator.stack_table import StackTable
from megatron.torch_trace.format.integer_arrays import Column, Ints


@dataclass(frozen=True, slots=True)
class Held:
    """Memory in use at one moment.

    Args:
        size: bytes.
        categories: the same by category.
        holders: the same by call stack, the largest first.
    """

    size: int
    categories: dict[Category, int]
    holders: tuple[Holder, ...]


def held_by(allocations: Allocations, categories: Column, stacks: StackTable, rows: Ints) -> Held:
    """What the allocations in `rows` hold."""
    return Held(
        int(allocations.size[rows].sum()),
        by_category(allocations, categories, rows),
        holders_of(allocations, categories, stacks, rows),
    )
