# SPDX-License-Identifier: Apache-2.0
"""Which forward of which model gave what a backward pass begins at, as autograd's graph tells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch


class Outputs:
    """What the forwards of one iteration have given."""

    def __init__(self) -> None:
        self._given: dict[int, tuple[str | None, int]] = {}

    def __bool__(self) -> bool:
        """Whether the output of some forward is known."""
        return bool(self._given)

    def forget(self) -> None:
        """Another iteration begins."""
        self._given.clear()

    def note(self, of: str | None, number: int, output: Any) -> None:
        """A forward has ended.

        Args:
            of: the name of its model; None of a loop's only one.
            number: of its micro-batch.
            output: however its tensors are packed.
        """
        for node in _nodes(output):
            self._given[_number(node)] = (of, number)

    def behind(self, tensors: Any) -> dict[str | None, int]:
        """The forwards whose outputs a backward meets first: one of each model, by its name.

        Args:
            tensors: that the backward begins at.
        """
        found: dict[str | None, int] = {}
        oldest = min(self._given, default=0)
        waiting, seen = [*_nodes(tensors)], set()
        while waiting and None not in found:
            node = waiting.pop()
            number = _number(node)
            if number in self._given:
                found.setdefault(*self._given[number])
                continue
            # What is older than all outputs lies behind them, in the model.
            if node in seen or number < oldest:
                continue
            seen.add(node)
            waiting += [each for each, _ in node.next_functions if each is not None]
        return found


def inside_backward() -> bool:
    """Whether this thread runs a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


def _nodes(output: Any) -> Iterator[Any]:
    """What autograd has for the tensors of an output, however they are packed."""
    if isinstance(output, torch.Tensor):
        if output.grad_fn is not None:
            yield output.grad_fn
    elif isinstance(output, Mapping):
        for each in output.values():
            yield from _nodes(each)
    elif isinstance(output, Iterable) and not isinstance(output, str):
        for each in output:
            yield from _nodes(each)


def _number(node: Any) -> int:
    # A number keeps no graph alive; it grows with every node that is made.
    number: int = node._sequence_nr()
    return number
