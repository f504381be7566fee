# SPDX-License-Identifier: Apache-2.0
"""Spans named by phase: Megatron's timers, micro-batches, logging, evaluation and checkpoints.

    forward micro-batch 3 (steady)                the schedule's forward_step, counted from 0
    backward micro-batch 0 chunk 1 (cooldown)     chunk: virtual pipeline stage, if it has several
    optimizer-inner-step, all-grads-sync, ...     Megatron's timers by name

Megatron's timers below its log level are one nameless dummy, and those at it synchronise the GPU.
Here every timer leaves a span, whatever the level, and none synchronises on our account. The names
are wrapped when a window opens and put back when it closes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Any

from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug
from megatron.torch_profile.patching import OLDEST_CORE, Patch, PatchSet
from megatron.torch_profile.spans.ranges import Range, begin, end

_TRAINING = "megatron.training.training"
_SCHEDULES = "megatron.core.pipeline_parallel.schedules"
# Runs from one log line to the next, across windows.
_NO_PHASES = ("interval-time",)


class Phases:
    """The open phases of one window on this rank."""

    def __init__(self) -> None:
        self.guard = Guard(Slug.SPANS_FAILED, "training goes on without spans of phases")
        self.open: list[str] = []
        """Names of what is open, the outermost first."""
        self._timers: dict[str, list[Any]] = {}
        self._microbatches: dict[int, tuple[int, int | None]] = {}
        self._forwards: dict[int | None, int] = {}
        self._count = {"forward": 0, "backward": 0}

    def begin_step(self) -> None:
        """A new iteration: micro-batches count from 0 again."""
        self._microbatches.clear()
        self._forwards.clear()
        self._count = {"forward": 0, "backward": 0}

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

    def forward(self, model: Any, given: int | None, schedule: Schedule | None) -> Any:
        """The span of a micro-batch's forward, and the call that remembers its output."""
        chunk = schedule.chunk_of(model) if schedule else None
        number = self._forwards.get(chunk, 0) if given is None else given
        self._forwards[chunk] = number + 1
        phase = self._phase("forward", schedule)
        span = _NotedRange(_microbatch_name("forward", number, chunk, phase), self)
        return span, partial(self._remember, number, chunk)

    def backward(self, output: Any, schedule: Schedule | None) -> Any:
        """The span of a micro-batch's backward, found by the output its forward returned."""
        number, chunk = self._microbatches.pop(id(_first(output)), (None, None))
        phase = self._phase("backward", schedule)
        return _NotedRange(_microbatch_name("backward", number, chunk, phase), self)

    def _remember(self, number: int, chunk: int | None, output: Any) -> None:
        self._microbatches[id(_first(output))] = (number, chunk)

    def _phase(self, direction: str, schedule: Schedule | None) -> str | None:
        index = self._count[direction]
        self._count[direction] += 1
        return schedule.phase(direction, index) if schedule else None


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


class Schedule:
    """Where a rank stands in 1F1B.

    A stage runs `warmup` forwards, then one backward after each forward, then the backwards that
    are left (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
    Clusters", section 2.2). With v virtual stages, p stages and groups of g micro-batches, stage i
    has 2(p-i-1) + (v-1)g of them, else p-i-1.

    Args:
        stages, stage: pipeline size and this rank's stage.
        chunks: virtual stages of a rank.
        microbatches: of an iteration.
        group: micro-batches that a virtual stage takes at once; `stages` by default.
    """

    def __init__(
        self, stages: int, stage: int, chunks: int, microbatches: int, group: int | None = None
    ) -> None:
        self._chunks = chunks
        self._total = microbatches * chunks
        left = stages - stage - 1
        warmup = left if chunks == 1 else 2 * left + (chunks - 1) * (group or stages)
        self._warmup = min(warmup, self._total)

    def phase(self, direction: str, index: int) -> str:
        """warmup, steady or cooldown of the rank's index-th forward or backward."""
        if direction == "forward":
            return "warmup" if index < self._warmup else "steady"
        return "steady" if index < self._total - self._warmup else "cooldown"

    def chunk_of(self, model: Any) -> int | None:
        """The virtual stage of a model chunk, None if there is only one."""
        if self._chunks == 1:
            return None
        while not hasattr(model, "vp_stage") and hasattr(model, "module"):
            model = model.module
        stage = getattr(model, "vp_stage", None)
        if stage is None:  # before core 0.13 the schedule keeps it in a global
            stage = _parallel_state().get_virtual_pipeline_model_parallel_rank()
        return int(stage) if stage is not None else None


@contextmanager
def phase_spans() -> Iterator[Phases]:
    """While open, Megatron's phases leave spans; afterwards its names are its own again."""
    global _current
    _current = Phases()
    _PATCHES.apply()
    try:
        yield _current
    finally:
        _PATCHES.remove()
        _current.close()
        _current = None


def _microbatch_name(
    direction: str, number: int | None, chunk: int | None, phase: str | None
) -> str:
    name = f"{direction} micro-batch"
    if number is not None:
        name += f" {number}"
    if chunk is not None:
        name += f" chunk {chunk}"
    return f"{name} ({phase})" if phase else name


def _first(value: Any) -> Any:
    while isinstance(value, (list, tuple, dict)) and value:
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return value


def _parallel_state() -> Any:
    from megatron.core import parallel_state

    return parallel_state


def _schedule(microbatches: int, config: Any) -> Schedule | None:
    state = _parallel_state()
    stages = state.get_pipeline_model_parallel_world_size()
    if stages == 1:
        return None
    return Schedule(
        stages,
        state.get_pipeline_model_parallel_rank(),
        state.get_virtual_pipeline_model_parallel_world_size() or 1,
        microbatches,
        getattr(config, "microbatch_group_size_per_vp_stage", None),
    )


@lru_cache(maxsize=8)
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _forward_step(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    phases = _current
    if phases is None:
        return wrapped(*args, **kwargs)
    span, remember = phases.guard(_begin_forward, phases, wrapped, args, kwargs) or _NO_SPAN
    with span:
        result = wrapped(*args, **kwargs)
    phases.guard(remember, result)
    return result


def _begin_forward(phases: Phases, wrapped: Any, args: Any, kwargs: Any) -> Any:
    given = _signature(wrapped).bind(*args, **kwargs).arguments
    schedule = _remembered_schedule(given["num_microbatches"], given.get("config"))
    return phases.forward(given["model"], given.get("current_microbatch"), schedule)


def _backward_step(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    phases = _current
    if phases is None:
        return wrapped(*args, **kwargs)
    span = phases.guard(_begin_backward, phases, wrapped, args, kwargs) or nullcontext()
    with span:
        return wrapped(*args, **kwargs)


def _begin_backward(phases: Phases, wrapped: Any, args: Any, kwargs: Any) -> Any:
    output = _signature(wrapped).bind(*args, **kwargs).arguments.get("output_tensor")
    return phases.backward(output, _last_schedule)


def _remembered_schedule(microbatches: int, config: Any) -> Schedule | None:
    global _last_schedule
    _last_schedule = _schedule(microbatches, config)
    return _last_schedule


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
_last_schedule: Schedule | None = None
_NO_SPAN: tuple[Any, Any] = (nullcontext(), lambda output: None)

# A name that some Megatron lacks costs its spans, never the training: hence "since".
_PATCHES = PatchSet(
    (
        Patch("megatron.core.timers", "Timers.__call__", _timer, OLDEST_CORE),
        Patch(_SCHEDULES, "forward_step", _forward_step, OLDEST_CORE),
        Patch(_SCHEDULES, "backward_step", _backward_step, OLDEST_CORE),
        Patch(_TRAINING, "training_log", _span("logging"), OLDEST_CORE),
        Patch(_TRAINING, "evaluate_and_print_results", _span("evaluation"), OLDEST_CORE),
        Patch(_TRAINING, "save_checkpoint_and_time", _span("checkpoint"), OLDEST_CORE),
    )
)
