# SPDX-License-Identifier: Apache-2.0
"""What is in use at two moments, put side by side: by category, by module and by stack.

A stack is the same one in both where its frames are. What is left then is matched without line
numbers and folders: an edit above a function, or another folder of the same package, moves both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from megatron.torch_trace.allocator.held import Held
from megatron.torch_trace.allocator.holders import Holder
from megatron.torch_trace.allocator.purpose.categories import CATEGORIES, Category
from megatron.torch_trace.allocator.stack_table import Stack

_PATH_PARTS = 2
"""Of a file: `transformer/attention.py` is the same file in two installations."""


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes in use before and after.

    Args:
        name: category, module, or the innermost code of a stack; empty of what has no stack.
        before, after: bytes.
        category: of a stack; None of anything else.
        stack: of a stack, as the side has it that holds more; else empty.
    """

    name: str
    before: int
    after: int
    category: Category | None = None
    stack: Stack = ()

    @property
    def change(self) -> int:
        """After less before."""
        return self.after - self.before

    @property
    def kind(self) -> str:
        """`new`, `gone`, `grew`, `shrank` or `same`."""
        if not self.change:
            return "same"
        if not self.before:
            return "new"
        if not self.after:
            return "gone"
        return "grew" if self.change > 0 else "shrank"


@dataclass(frozen=True, slots=True)
class HeldChange:
    """Everything in use at two moments.

    Args:
        total: all of it.
        categories: that either side has, in their order.
        modules, stacks: the largest change first; what is as before is left out.
    """

    total: Change
    categories: tuple[Change, ...]
    modules: tuple[Change, ...]
    stacks: tuple[Change, ...]


def changes_of(before: Held, after: Held) -> HeldChange:
    """Compare what is in use before and after."""
    categories = (
        Change(one.words, before.categories.get(one, 0), after.categories.get(one, 0))
        for one in CATEGORIES
    )
    return HeldChange(
        total=Change("all", before.size, after.size),
        categories=tuple(one for one in categories if one.before or one.after),
        modules=_changed(_modules(before.holders, after.holders)),
        stacks=_changed(_stacks(before.holders, after.holders)),
    )


def _changed(found: Iterable[Change]) -> tuple[Change, ...]:
    return tuple(
        sorted(
            (one for one in found if one.change),
            key=lambda one: (-abs(one.change), -one.change, one.name, one.stack),
        )
    )


def _modules(before: Iterable[Holder], after: Iterable[Holder]) -> list[Change]:
    sizes: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for side, holders in enumerate((before, after)):
        for one in holders:
            sizes[one.module][side] += one.size
    return [Change(name, old, new) for name, (old, new) in sizes.items()]


def _stacks(before: Iterable[Holder], after: Iterable[Holder]) -> list[Change]:
    exact = _paired(before, after, lambda one: one.stack)
    both = [pair for pair in exact if all(pair)]
    gone = [one for pair in exact if not pair[1] for one in pair[0]]
    new = [one for pair in exact if not pair[0] for one in pair[1]]
    return [_stack_change(*pair) for pair in [*both, *_paired(gone, new, _moved)]]


def _paired(
    before: Iterable[Holder], after: Iterable[Holder], key: Callable[[Holder], Hashable]
) -> list[tuple[list[Holder], list[Holder]]]:
    found: dict[Hashable, tuple[list[Holder], list[Holder]]] = {}
    for side, holders in enumerate((before, after)):
        for one in holders:
            found.setdefault(key(one), ([], []))[side].append(one)
    return list(found.values())


def _moved(holder: Holder) -> Hashable:
    """A stack without line numbers and folders."""
    return tuple(_place(frame) for frame in holder.stack)


def _place(frame: str) -> str:
    call_site, _, function = frame.rpartition(" ")
    file, _, line = call_site.rpartition(":")
    known = file if line.isdigit() else call_site
    return f"{'/'.join(known.split('/')[-_PATH_PARTS:])} {function}"


def _stack_change(before: list[Holder], after: list[Holder]) -> Change:
    sizes = [sum(one.size for one in side) for side in (before, after)]
    shown = max(after if sizes[1] >= sizes[0] else before, key=lambda one: one.size)
    return Change(shown.module, sizes[0], sizes[1], shown.category, shown.stack)
