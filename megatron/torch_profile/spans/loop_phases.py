# SPDX-License-Identifier: Apache-2.0
"""Spans named by phase in a loop that has attached itself: micro-batches and the optimizer.

    forward micro-batch 1         a call of the model with gradients, counted from 0
    backward micro-batch 1        torch.autograd.backward, which Tensor.backward calls, of what the
                                  model gave in that forward
    optimizer                     a step of a torch.optim optimizer

The names are those that Megatron's phases have, so the read side treats them alike. A backward of
anything else has no name: a loss that is computed in chunks has one for each chunk, through the
last layer, before that of the micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug
from megatron.torch_profile.patching import Patch, PatchSet
from megatron.torch_profile.spans.phases import Phases
from megatron.torch_profile.spans.ranges import begin, end

_FORWARD, _BACKWARD, _OPTIMIZER = "forward", "backward", "optimizer"
_FIRST_CORE = (0, 6)


class LoopPhases:
    """The open phases of one window on this rank.

    Args:
        models: whose calls are forwards; what is compiled is left alone.
        megatrons: the phases of megatron-core's own schedule, if the loop calls it: inside of them
            nothing is named twice.
    """

    def __init__(self, models: list[torch.nn.Module], megatrons: Phases) -> None:
        self._megatrons = megatrons
        self.guard = Guard(Slug.SPANS_FAILED, "training goes on without spans of phases")
        self._open: list[tuple[str, str, Any]] = []
        self._count = {_FORWARD: 0, _BACKWARD: 0}
        self._given: dict[int, int] = {}
        self._handles: list[Any] = [
            register_optimizer_step_pre_hook(self._enter_optimizer),
            register_optimizer_step_post_hook(self._leave_optimizer),
        ]
        for model in models:
            self._handles += [
                model.register_forward_pre_hook(self._enter_forward, prepend=True),
                model.register_forward_hook(self._leave_forward, always_call=True),
            ]

    @property
    def open(self) -> list[str]:
        """Names of what is open, the outermost first."""
        return [name for _, name, _ in self._open]

    def begin_step(self) -> None:
        """A new iteration: micro-batches count from 0 again."""
        self._count = {_FORWARD: 0, _BACKWARD: 0}
        self._given = {}

    def enter(self, phase: str) -> None:
        """A phase begins."""
        if self._megatrons.open:
            return
        name = phase
        if phase in self._count:
            name = f"{phase} micro-batch {self._count[phase]}"
            self._count[phase] += 1
        self._open.append((phase, name, begin(name)))

    def enter_backward(self, tensors: Any) -> None:
        """A backward pass begins.

        Args:
            tensors: that it begins at, as torch.autograd.backward takes them.
        """
        if self._megatrons.open or _inside_backward():
            return
        if not self._given:
            self.enter(_BACKWARD)  # the model's outputs are not known
        elif (number := self._of_forward(tensors)) is not None:
            name = f"{_BACKWARD} micro-batch {number}"
            self._open.append((_BACKWARD, name, begin(name)))

    def leave_forward(self, output: Any) -> None:
        """A call of the model ends.

        Args:
            output: of the model; None if it failed.
        """
        if any(phase == _FORWARD for phase, _, _ in self._open) and not _inside_backward():
            for node in _nodes(output):
                self._given[_number(node)] = self._count[_FORWARD] - 1
        self.leave(_FORWARD)

    def _of_forward(self, tensors: Any) -> int | None:
        """Which forward gave what a backward begins at; None if no forward did."""
        oldest = min(self._given)
        waiting, seen = [*_nodes(tensors)], set()
        while waiting:
            node = waiting.pop()
            number = _number(node)
            if number in self._given:
                return self._given[number]
            # What is older than all outputs lies behind them, in the model.
            if node in seen or number < oldest:
                continue
            seen.add(node)
            waiting += [each for each, _ in node.next_functions if each is not None]
        return None

    def leave(self, phase: str) -> None:
        """It ends, and so does what an exception left open inside; one from before is unknown."""
        if any(phase == each for each, _, _ in self._open):
            left = None
            while left != phase:
                left, _, begun = self._open.pop()
                end(begun)

    def close(self) -> None:
        """The window closes: no hook is left, and nothing is open."""
        for handle in self._handles:
            handle.remove()
        while self._open:
            end(self._open.pop()[2])

    # Hooks return nothing, so inputs and outputs are what they were.
    def _enter_forward(self, *_: Any) -> None:
        # Evaluation inside a step is no micro-batch, nor is what a backward pass computes again.
        if torch.is_grad_enabled() and not _inside_backward():
            self.guard(self.enter, _FORWARD)

    def _leave_forward(self, model: Any, given: Any, output: Any) -> None:
        self.guard(self.leave_forward, output)

    def _enter_optimizer(self, *_: Any) -> None:
        self.guard(self.enter, _OPTIMIZER)

    def _leave_optimizer(self, *_: Any) -> None:
        self.guard(self.leave, _OPTIMIZER)


def _inside_backward() -> bool:
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


def _backward(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    phases = _current
    if phases is None:
        return wrapped(*args, **kwargs)
    phases.guard(phases.enter_backward, args[0] if args else kwargs.get("tensors"))
    try:
        return wrapped(*args, **kwargs)
    finally:
        phases.guard(phases.leave, _BACKWARD)


@contextmanager
def loop_phase_spans(chunks: Any, megatrons: Phases) -> Iterator[LoopPhases]:
    """While open, micro-batches and the optimizer leave spans; afterwards no hook is left.

    Args:
        chunks: the model, or a list of models; None where it was not given.
        megatrons: see `LoopPhases`.
    """
    global _current
    models = [
        chunk
        for chunk in (chunks if isinstance(chunks, (list, tuple)) else [chunks])
        if isinstance(chunk, torch.nn.Module) and not _is_compiled(chunk)
    ]
    with ExitStack() as stack:
        _current = phases = LoopPhases(models, megatrons)
        stack.callback(phases.close)
        _PATCHES.apply()
        stack.callback(_PATCHES.remove)
        try:
            yield phases
        finally:
            _current = None


def _is_compiled(model: torch.nn.Module) -> bool:
    # A hook on it would be compiled into it, and its graph would be another one.
    return hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None


_current: LoopPhases | None = None
_PATCHES = PatchSet((Patch("torch.autograd", "backward", _backward, since=_FIRST_CORE),))
