# SPDX-License-Identifier: Apache-2.0
"""Spans named by phase: Megatron's timers, micro-batches, logging, evaluation and checkpoints.

    forward micro-batch 3 (steady)                a forward_step with gradients, counted from 0
    backward micro-batch 0 chunk 1 (cooldown)     chunk: virtual pipeline stage, if it has several
    forward micro-batch 3 of critic (steady)      where a loop has several models
    optimizer-inner-step, all-grads-sync, ...     Megatron's timers by name

With `--overlap-moe-expert-parallel-comm` a forward and a backward take turns, node by node; every
turn leaves a span with the name of its micro-batch, `forward micro-batch 3 (steady), part`. What
`--delay-wgrad-compute` delays is a turn of its own.

Megatron's timers below its log level are one nameless dummy, and those at it synchronise the GPU.
Here every timer leaves a span, whatever the level, and none synchronises on our account. The names
are wrapped when a window opens and put back when it closes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch

from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug
from megatron.torch_profile.patching import OLDEST_CORE, Patch, PatchSet
from megatron.torch_profile.spans.microbatch_names import MicrobatchNames
from megatron.torch_profile.spans.pipeline_schedule import schedule_of
from megatron.torch_profile.spans.ranges import Range, begin, end

_TRAINING = "megatron.training.training"
_SCHEDULES = "megatron.core.pipeline_parallel.schedules"
_COMBINED = "megatron.core.pipeline_parallel.combined_1f1b"
_NODES = "megatron.core.pipeline_parallel.utils"
_MODELS = "megatron.core.models"
_DELAYED = "TransformerLayerNode.backward_dw"
_NO_PHASES = ("interval-time",)  # from one log line to the next, across windows


class Phases(MicrobatchNames):
    """The open phases of one window on this rank.

    Args:
        model: see `MicrobatchNames`.
    """

    def __init__(self, model: Any = None) -> None:
        super().__init__(model)
        self.guard = Guard(Slug.SPANS_FAILED, "training goes on without spans of phases")
        self.open: list[str] = []  # names of what is open, the outermost first
        self.forward_piece: str | None = None  # of micro-batches whose pieces take turns now
        self.backward_piece: str | None = None
        self._timers: dict[str, list[Any]] = {}

    def start(self, name: str) -> None:
        """A timer starts."""
        if name not in _NO_PHASES:
            self._timers.setdefault(name, []).append(begin(name))
            self.open.append(name)

    def stop(self, name: str) -> None:
        """A timer stops; one that started before the window is not known."""
        if self._timers.get(name):
            end(self._timers[name].pop())
            if name in self.open:
                self.open.remove(name)

    def close(self) -> None:
        """The window closes: so does what is open."""
        for spans in self._timers.values():
            while spans:
                end(spans.pop())

    def forward(self, model: Any, given: int | None) -> tuple[Any, Callable[[Any], None]]:
        """The span of a micro-batch's forward, and the call that remembers its output."""
        name, remember = self.forward_name(model, given)
        return self.span(name), remember

    def backward(self, output: Any) -> Any:
        """The span of a micro-batch's backward, found by the output its forward returned."""
        return self.span(self.backward_name(output))

    def span(self, name: str) -> Any:
        """A span of a micro-batch, or of a piece of it."""
        return _NotedRange(name, self)


class _NotedRange(Range):
    """A range that the phases know while it is open."""

    __slots__ = ("_phases",)

    def __init__(self, name: str, phases: Phases) -> None:
        super().__init__(name)
        self._phases = phases

    def __enter__(self) -> None:
        super().__enter__()
        self._phases.open.append(self._name)

    def __exit__(self, *error: Any) -> None:
        if self._name in self._phases.open:
            self._phases.open.remove(self._name)
        super().__exit__(*error)


@contextmanager
def phase_spans(model: Any = None) -> Iterator[Phases]:
    """While open, Megatron's phases leave spans; afterwards its names are its own again.

    Args:
        model: see `Phases`.
    """
    global _current
    _current = Phases(model)
    _PATCHES.apply()
    try:
        yield _current
    finally:
        _PATCHES.remove()
        _current.close()
        _current = None


@lru_cache(maxsize=8)
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _forward_step(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    phases = _current
    # What has no backward is no micro-batch: train_rl.py computes log-probabilities in a step, too.
    if phases is None or not torch.is_grad_enabled():
        return wrapped(*args, **kwargs)
    span, remember = phases.guard(_begin_forward, phases, wrapped, args, kwargs) or _NO_SPAN
    with span:
        result = wrapped(*args, **kwargs)
    phases.guard(remember, result)
    return result


def _begin_forward(phases: Phases, wrapped: Any, args: Any, kwargs: Any) -> Any:
    given = _signature(wrapped).bind(*args, **kwargs).arguments
    phases.schedule = schedule_of(given["num_microbatches"], given.get("config"))
    return phases.forward(given["model"], given.get("current_microbatch"))


def _backward_step(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    phases = _current
    if phases is None:
        return wrapped(*args, **kwargs)
    span = phases.guard(_begin_backward, phases, wrapped, args, kwargs) or nullcontext()
    with span:
        return wrapped(*args, **kwargs)


def _begin_backward(phases: Phases, wrapped: Any, args: Any, kwargs: Any) -> Any:
    output = _signature(wrapped).bind(*args, **kwargs).arguments.get("output_tensor")
    return phases.backward(output)


def _combined_step(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """A forward and a backward of two micro-batches, whose pieces take turns."""
    phases = _current
    if phases is None:
        return wrapped(*args, **kwargs)
    phases.forward_piece, phases.backward_piece, remember = (
        phases.guard(_begin_combined, phases, wrapped, args, kwargs) or _NO_PIECES
    )
    try:
        result = wrapped(*args, **kwargs)
    finally:
        phases.forward_piece = phases.backward_piece = None
    phases.guard(remember, result)
    return result


def _begin_combined(phases: Phases, wrapped: Any, args: Any, kwargs: Any) -> Any:
    given = _signature(wrapped).bind(*args, **kwargs).arguments
    phases.schedule = schedule_of(given["num_microbatches"], given.get("config"))
    forward, backward, remember = _NO_PIECES
    if given.get("f_model") is not None:
        forward, remember = phases.forward_name(given["f_model"], given.get("current_microbatch"))
    if given.get("b_model") is not None:
        backward = phases.backward_name(given.get("b_output_tensor"))
    return forward, backward, remember


def _piece(attribute: str) -> Callable[[Any, Any, Any, Any], Any]:
    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(_current, attribute, None)
        with _current.span(f"{name}, part") if _current and name else nullcontext():
            return wrapped(*args, **kwargs)

    return wrapper


def _weight_gradients(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    if getattr(instance, "delay_wgrad_compute", False):
        return _BACKWARD_PIECE(wrapped, instance, args, kwargs)
    return wrapped(*args, **kwargs)  # called on every node


class _NamedTimer:
    """A Megatron timer, or its dummy, that also knows its name."""

    __slots__ = ("_name", "_phases", "_timer")

    def __init__(self, timer: Any, name: str, phases: Phases) -> None:
        self._timer, self._name, self._phases = timer, name, phases

    def start(self, *args: Any, **kwargs: Any) -> Any:
        self._phases.guard(self._phases.start, self._name)
        return self._timer.start(*args, **kwargs)

    def stop(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._timer.stop(*args, **kwargs)
        finally:
            self._phases.guard(self._phases.stop, self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._timer, name)


def _timer(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    timer = wrapped(*args, **kwargs)
    name = args[0] if args else kwargs["name"]
    return timer if _current is None else _NamedTimer(timer, name, _current)


def _span(name: str) -> Callable[[Any, Any, Any, Any], Any]:
    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        with Range(name) if _current else nullcontext():
            return wrapped(*args, **kwargs)

    return wrapper


_current: Phases | None = None
_BACKWARD_PIECE = _piece("backward_piece")
_NO_SPAN: tuple[Any, Any] = (nullcontext(), lambda output: None)
_NO_PIECES: tuple[Any, Any, Any] = (None, None, lambda output: None)

# A name that some Megatron lacks costs its spans, never the training: hence "since".
_PATCHES = PatchSet(
    (
        Patch("megatron.core.timers", "Timers.__call__", _timer, OLDEST_CORE),
        Patch(_SCHEDULES, "forward_step", _forward_step, OLDEST_CORE),
        Patch(_SCHEDULES, "backward_step", _backward_step, OLDEST_CORE),
        # --overlap-moe-expert-parallel-comm calls neither of the two.
        Patch(_COMBINED, "combined_forward_backward_step", _combined_step, OLDEST_CORE),
        Patch(_NODES, "ScheduleNode.forward", _piece("forward_piece"), OLDEST_CORE),
        Patch(_NODES, "ScheduleNode.backward", _BACKWARD_PIECE, OLDEST_CORE),
        Patch(f"{_MODELS}.gpt.fine_grained_callables", _DELAYED, _weight_gradients, (0, 14)),
        Patch(f"{_MODELS}.common.utils", _DELAYED, _weight_gradients, (0, 19)),
        Patch(_TRAINING, "training_log", _span("logging"), OLDEST_CORE),
        Patch(_TRAINING, "evaluate_and_print_results", _span("evaluation"), OLDEST_CORE),
        Patch(_TRAINING, "save_checkpoint_and_time", _span("checkpoint"), OLDEST_CORE),
    )
)
