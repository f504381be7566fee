# SPDX-License-Identifier: Apache-2.0
"""What lives at the peak by stack, as a tree for an icicle: the outermost frame first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from megatron.torch_trace.allocator.holders import NO_STACK, Holder
from megatron.torch_trace.allocator.purpose.categories import Category

_LEAST = 0.001
"""Of everything: what is smaller than that is left out of the tree, and counts for its parent."""


@dataclass(slots=True)
class Node:
    """A frame with what lives below it.

    Args:
        frame: `file:line function`.
        size: bytes of it and of all below.
        category: that most of it is for.
        below: frames that it called, the largest first.
    """

    frame: str
    size: int
    category: Category
    below: list[Node] = field(default_factory=list)

    @property
    def own(self) -> int:
        """Bytes that no frame below has: its own, and what is too small to be drawn."""
        return self.size - sum(one.size for one in self.below)


@dataclass(slots=True)
class _Frame:
    sizes: dict[Category, int] = field(default_factory=dict)
    below: dict[str, _Frame] = field(default_factory=dict)

    def add(self, holder: Holder) -> None:
        self.sizes[holder.category] = self.sizes.get(holder.category, 0) + holder.size


def icicle_of(holders: Iterable[Holder]) -> Node:
    """The tree; its root is everything."""
    root = _Frame()
    for holder in holders:
        root.add(holder)
        at = root
        for frame in reversed(holder.stack or (NO_STACK,)):
            at = at.below.setdefault(frame, _Frame())
            at.add(holder)
    least = _LEAST * sum(root.sizes.values())
    return _node("all", root, least)


def _node(frame: str, found: _Frame, least: float) -> Node:
    below = [_node(name, one, least) for name, one in found.below.items() if _size(one) > least]
    category = max(found.sizes, key=lambda one: found.sizes[one], default=Category.UNKNOWN)
    below.sort(key=lambda one: (-one.size, one.frame))
    return Node(frame, _size(found), category, below)


def _size(found: _Frame) -> int:
    return sum(found.sizes.values())
