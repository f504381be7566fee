# SPDX-License-Identifier: Apache-2.0
"""Spans named by phase in a loop that has attached itself: micro-batches and the optimizer.

    forward micro-batch 1         a call of the model with gradients, counted from 0
    backward micro-batch 1        torch.autograd.backward, which Tensor.backward calls, of what the
                                  model gave in that forward
    optimizer                     a step of a torch.optim optimizer

Of several models each has its own, with its name:

    step of critic                      a step of this model alone
    forward micro-batch 1 of critic
    backward micro-batch 1 of critic    a backward through several models is one of each
    optimizer of critic                 where it has parameters of this model only
    forward without gradients of reference

The names are those that Megatron's phases have, so the read side treats them alike. A backward of
anything else has no name: a loss that is computed in chunks has one for each chunk, through the
last layer, before that of the micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug
from megatron.torch_profile.patching import Patch, PatchSet
from megatron.torch_profile.plan.training_loop import Models
from megatron.torch_profile.spans.model_outputs import Outputs, inside_backward
from megatron.torch_profile.spans.optimizer_owners import owner_of, owners
from megatron.torch_profile.spans.phases import Phases
from megatron.torch_profile.spans.pipeline_schedule import microbatch_name
from megatron.torch_profile.spans.ranges import begin, end

_FORWARD, _BACKWARD, _OPTIMIZER, _STEP = "forward", "backward", "optimizer", "step"
_NO_GRADIENTS = "forward without gradients"
_FIRST_CORE = (0, 6)


class _Open(NamedTuple):
    """A phase that has begun, and whose it is, where a loop has several models."""

    phase: str
    of: str | None
    name: str
    begun: Any


class LoopPhases:
    """The open phases of one window on this rank.

    Args:
        models: whose calls are forwards, by their names; what is compiled is left alone.
        megatrons: the phases of megatron-core's own schedule, if the loop calls it: inside of them
            nothing is named twice.
    """

    def __init__(
        self, models: Mapping[str | None, Sequence[torch.nn.Module]], megatrons: Phases
    ) -> None:
        self._megatrons = megatrons
        self.guard = Guard(Slug.SPANS_FAILED, "training goes on without spans of phases")
        self._open: list[_Open] = []
        self._count: Counter[tuple[str, str | None]] = Counter()
        self._outputs = Outputs()
        self._owners = owners(models)
        self._handles: list[Any] = [
            register_optimizer_step_pre_hook(self._enter_optimizer),
            register_optimizer_step_post_hook(self._leave_optimizer),
        ]
        for name, of in models.items():
            for model in of:
                self._handles += [
                    model.register_forward_pre_hook(
                        partial(self._enter_forward, name), prepend=True, with_kwargs=True
                    ),
                    model.register_forward_hook(
                        partial(self._leave_forward, name), always_call=True
                    ),
                ]

    @property
    def open(self) -> list[str]:
        """Names of what is open, the outermost first."""
        return [one.name for one in self._open]

    def begin_step(self) -> None:
        """A new iteration: micro-batches count from 0 again."""
        self._count.clear()
        self._outputs.forget()

    def enter_model_step(self, name: str) -> None:
        """A step of one of several models: its own micro-batches count from 0 again."""
        for phase in (_FORWARD, _BACKWARD):
            self._count[phase, name] = 0
        self._megatrons.begin_model_step(name)
        self._begin(_STEP, name, f"{_STEP} of {name}")

    def leave_model_step(self, name: str) -> None:
        """It ends."""
        self._leave(_STEP, of=name)

    def enter_forward(self, of: str | None, model: Any, args: Any, kwargs: Any) -> None:
        """A call of a model begins; what a backward pass computes again is none.

        Args:
            of: the model's name; None of a loop's only one, whose evaluation has no name either.
            model, args, kwargs: it, and what it is called with.
        """
        if inside_backward():
            return
        trains = torch.is_grad_enabled() and (of is None or _may_train(model, args, kwargs))
        if trains and not self._megatrons.open:
            self._begin(_FORWARD, of, self._next(_FORWARD, of))
        elif not trains and of is not None:
            self._begin(_NO_GRADIENTS, of, f"{_NO_GRADIENTS} of {of}")

    def leave_forward(self, of: str | None, output: Any) -> None:
        """A call of a model ends.

        Args:
            of: its name.
            output: of the model; None if it failed.
        """
        calls = (one.phase for one in reversed(self._open) if one.of == of)
        phase = next((phase for phase in calls if phase in (_FORWARD, _NO_GRADIENTS)), None)
        if phase is None:
            return
        if phase == _FORWARD and not inside_backward():
            self._outputs.note(of, self._count[_FORWARD, of] - 1, output)
        self._leave(phase, of)

    def enter_optimizer(self, optimizer: Any) -> None:
        """A step of a torch.optim optimizer begins."""
        if not self._megatrons.open:
            of = owner_of(optimizer, self._owners)
            self._begin(_OPTIMIZER, None, f"{_OPTIMIZER} of {of}" if of else _OPTIMIZER)

    def enter_backward(self, tensors: Any) -> int:
        """A backward pass begins.

        Args:
            tensors: that it begins at, as torch.autograd.backward takes them.

        Returns:
            How many phases were open before, for `leave_backward`.
        """
        before = len(self._open)
        if self._megatrons.open or inside_backward():
            return before
        if not self._outputs:
            self._begin(_BACKWARD, None, self._next(_BACKWARD, None))  # outputs are not known
        for of, number in self._outputs.behind(tensors).items():
            self._begin(_BACKWARD, of, microbatch_name(_BACKWARD, number, None, None, of))
        return before

    def leave_backward(self, before: int | None) -> None:
        """It ends, and so does what is open inside."""
        while before is not None and len(self._open) > before:
            end(self._open.pop().begun)

    def _next(self, phase: str, of: str | None) -> str:
        number = self._count[phase, of]
        self._count[phase, of] += 1
        return microbatch_name(phase, number, None, None, of)

    def _begin(self, phase: str, of: str | None, name: str) -> None:
        self._open.append(_Open(phase, of, name, begin(name)))

    def _leave(self, phase: str, of: str | None) -> None:
        """It ends, and so does what an exception left open inside; one from before is unknown."""
        if any((one.phase, one.of) == (phase, of) for one in self._open):
            left = None
            while left != (phase, of):
                ended = self._open.pop()
                end(ended.begun)
                left = (ended.phase, ended.of)

    def close(self) -> None:
        """The window closes: no hook is left, and nothing is open."""
        for handle in self._handles:
            handle.remove()
        while self._open:
            end(self._open.pop().begun)

    # Hooks return nothing, so inputs and outputs are what they were.
    def _enter_forward(self, name: str | None, model: Any, args: Any, kwargs: Any) -> None:
        self.guard(self.enter_forward, name, model, args, kwargs)

    def _leave_forward(self, name: str | None, model: Any, given: Any, output: Any) -> None:
        self.guard(self.leave_forward, name, output)

    def _enter_optimizer(self, optimizer: Any, *_: Any) -> None:
        self.guard(self.enter_optimizer, optimizer)

    def _leave_optimizer(self, *_: Any) -> None:
        self.guard(self._leave, _OPTIMIZER, None)


def _may_train(model: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call with gradients has any: those of a frozen model are its inputs'."""
    given = (one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor))
    return any(one.requires_grad for one in (*given, *model.parameters()))


def _backward(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    phases = _current
    if phases is None:
        return wrapped(*args, **kwargs)
    before = phases.guard(phases.enter_backward, args[0] if args else kwargs.get("tensors"))
    try:
        return wrapped(*args, **kwargs)
    finally:
        phases.guard(phases.leave_backward, before)


@contextmanager
def loop_phase_spans(chunks: Any, megatrons: Phases) -> Iterator[LoopPhases]:
    """While open, micro-batches and the optimizer leave spans; afterwards no hook is left.

    Args:
        chunks: the model, or a list of models; None where it was not given.
        megatrons: see `LoopPhases`.
    """
    global _current
    named = chunks.by_name if isinstance(chunks, Models) else {}
    models: dict[str | None, list[torch.nn.Module]] = {
        name: _hooked(of) for name, of in named.items()
    }
    if not models:
        models[None] = _hooked(chunks)
    with ExitStack() as stack:
        _current = phases = LoopPhases(models, megatrons)
        stack.callback(phases.close)
        _PATCHES.apply()
        stack.callback(_PATCHES.remove)
        try:
            yield phases
        finally:
            _current = None


@contextmanager
def model_step(name: str) -> Iterator[None]:
    """A step of one of several models, which leaves a span where a window is open.

    Args:
        name: of the model.
    """
    phases = _current
    if phases is not None:
        phases.guard(phases.enter_model_step, name)
    try:
        yield
    finally:
        if phases is not None:
            phases.guard(phases.leave_model_step, name)


def _hooked(chunks: Any) -> list[torch.nn.Module]:
    """The modules in a model that hooks can be on."""
    return [
        chunk
        for chunk in (chunks if isinstance(chunks, (list, tuple)) else [chunks])
        if isinstance(chunk, torch.nn.Module) and not _is_compiled(chunk)
    ]


def _is_compiled(model: torch.nn.Module) -> bool:
    # A hook on it would be compiled into it, and its graph would be another one.
    return hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None


_current: LoopPhases | None = None
_PATCHES = PatchSet((Patch("torch.autograd", "backward", _backward, since=_FIRST_CORE),))
