# SPDX-License-Identifier: Apache-2.0
"""Numbers of one call of Megatron's `train`, from timers, clock and GPUs to every sink.

Every rank does the same at the same places: `training_log` of an iteration that Megatron logs is
one all-gather of ours, whoever is profiled, whoever has a W&B run, and whatever failed before. A
rank whose measuring fails says so once and sends NaN from then on.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug, warn
from megatron.torch_profile.metrics import (
    across_ranks,
    compile_counts,
    step_times,
    telemetry,
    timers,
)
from megatron.torch_profile.metrics.iteration_memory import IterationMemory
from megatron.torch_profile.metrics.nvml import GIB
from megatron.torch_profile.metrics.step_times import ProfiledIterations, StepClock, StepSplit
from megatron.torch_profile.metrics_config import MetricsConfig
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_profile.publish import sinks
from megatron.torch_profile.record.compilations import COUNTS, CompileWatch

MEMORY = ("allocated_gib", "reserved_gib", "peak_gib")
"""Of torch's allocator."""
_PARTS = (step_times.FIELDS, MEMORY, telemetry.FIELDS, COUNTS)
"""What a rank's row holds, in this order."""


class Metrics:
    """What the wrapped names of Megatron call; see `patches.PATCHES`.

    Args:
        config: what the user asked for.
        args: Megatron's arguments, which Megatron keeps up to date.
        outputs: who takes the numbers here.
        rank: of this process.
        gpus: world size.
        windows: what will be profiled, on any rank.
        count_flops: Megatron's formula for one iteration, None if unknown.
        peak_tflops: dense bf16 peak of one GPU, None if unknown.
        sampler: GPU telemetry of this rank, if it was asked for and there is any.
        clock: for iterations.
        memory: after every iteration, if that was asked for and there is a GPU.
    """

    def __init__(
        self,
        config: MetricsConfig,
        args: Any,
        outputs: sinks.Sinks,
        *,
        rank: int = 0,
        gpus: int = 1,
        windows: Iterable[Window] = (),
        count_flops: Callable[[], float | None] = lambda: None,
        peak_tflops: float | None = None,
        sampler: telemetry.Sampler | None = None,
        clock: StepClock | None = None,
        memory: IterationMemory | None = None,
    ) -> None:
        self._config = config
        self._args = args
        self._sinks = outputs
        self._rank = rank
        self._guard = Guard(Slug.METRICS_FAILED, f"rank {rank}: training goes on without metrics")
        self._gpus = gpus
        self._profiled = ProfiledIterations(windows)
        self._count_flops = count_flops
        self._peak_tflops = peak_tflops
        self._sampler = sampler
        self._clock = clock or StepClock()
        self._memory = memory
        self._timer_log = timers.TimerLog()
        self._watch = CompileWatch()
        self._fleet = telemetry.Fleet()
        self._complaints = compile_counts.Complaints()
        self._warm = False
        self._apart = False
        self._in_step = False
        self._logging = False
        self._iteration = int(getattr(args, "iteration", 0) or 0)
        self._consumed = self._consumed_now()
        self._samples = 0
        self._values: dict[str, float] = {}
        self._line = ""
        self._signature: inspect.Signature | None = None

    # What Megatron calls, in the order of an iteration.

    def train_step(self, wrapped: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Around `train_step`."""
        self._guard(self._clock.begin_step)
        self._in_step = True
        try:
            return wrapped(*args, **kwargs)
        finally:
            self._in_step = False

    def next_batch(self, wrapped: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Around `next` of Megatron's data iterator."""
        if not self._in_step:  # evaluation
            return wrapped(*args, **kwargs)
        start = self._clock.clock()
        try:
            return wrapped(*args, **kwargs)
        finally:
            self._clock.add_data(self._clock.clock() - start)

    def pause(self, wrapped: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Around evaluation and checkpoints, which belong to no iteration."""
        start = self._clock.clock()
        try:
            return wrapped(*args, **kwargs)
        finally:
            self._clock.add_pause(self._clock.clock() - start)

    def training_log(self, wrapped: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Around `training_log`, which runs after every iteration on every rank."""
        iteration, first = self._iteration_of(wrapped, args, kwargs)
        if iteration is None:  # a fork's own signature, so on every rank
            return wrapped(*args, **kwargs)
        self._iteration = iteration
        self._guard(self._end_step)
        if first or iteration % self._args.log_interval == 0:
            # Megatron logs a process's first iteration alone, and again in its interval.
            self._tick(reset=not first)
        if self._memory is not None and self._sinks.here:
            self._values |= self._guard(self._memory.values) or {}
        self._logging = True
        try:
            result = wrapped(*args, **kwargs)
        finally:
            self._logging = False
        values, self._values, self._line = self._values, {}, ""
        self._guard(lambda: self._sinks.write(iteration, values))
        return result

    def print_line(self, wrapped: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Around `print_rank_last`: ours follows what Megatron says about the iteration."""
        if self._line and args and isinstance(args[0], str) and " iteration " in args[0]:
            args = (args[0] + self._line, *args[1:])
            self._line = ""
        return wrapped(*args, **kwargs)

    def log_timers(self, wrapped: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Around `Timers.log`."""
        if not self._config.timers:
            return wrapped(*args, **kwargs)
        result, reading = self._timer_log.log(wrapped, args, kwargs, per_iteration=self._logging)
        values = self._guard(lambda: timers.summarise(reading)) if reading else None
        if values and self._logging:
            self._values |= values
        elif values:  # evaluation, a checkpoint
            self._guard(lambda: self._sinks.write(self._iteration, values))
        return result

    def gather_timers(self, wrapped: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Around `Timers._get_elapsed_time_all_ranks(names, ...)`."""
        gathered = wrapped(*args, **kwargs)
        names = args[0] if args else kwargs.get("names", ())
        self._guard(lambda: self._timer_log.keep(names, gathered) if self._sinks.here else None)
        return gathered

    def write_timers(self, wrapped: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Around `Timers.write`: it never resets, `Timers.log` will."""
        if self._config.timers and self._logging:
            args, kwargs = timers.without_reset(wrapped, args, kwargs)
        return wrapped(*args, **kwargs)

    def add_window(self, window: Window) -> None:
        """Another window than the planned ones will be profiled, on some rank."""
        self._profiled.add(window)

    def start(self) -> None:
        """Training begins."""
        self._guard(self._watch.start)

    def stop(self) -> None:
        """Training has ended, however it ended."""
        self._watch.stop()
        if self._sampler:
            self._guard(self._sampler.stop)

    # Ours.

    def _iteration_of(
        self, wrapped: Callable[..., Any], args: Any, kwargs: Any
    ) -> tuple[int | None, bool]:
        try:
            self._signature = self._signature or inspect.signature(wrapped)
            given = self._signature.bind(*args, **kwargs).arguments
            return int(given["iteration"]), bool(given.get("is_first_iteration", False))
        except (TypeError, ValueError, KeyError):
            return None, False

    def _end_step(self) -> None:
        profiled = self._iteration in self._profiled
        self._clock.end_step(profiled=profiled)
        self._timer_log.count_iteration()
        before, self._consumed = self._consumed, self._consumed_now()
        if not profiled:
            self._samples += self._consumed - before

    def _consumed_now(self) -> int:
        return int(getattr(self._args, "consumed_train_samples", 0) or 0)

    def _tick(self, *, reset: bool) -> None:
        if self._apart:
            return
        row = self._guard(lambda: self._row(reset))
        unknown = [math.nan] * sum(map(len, _PARTS))
        try:
            # Also where measuring failed: on every rank, or on none.
            rows = across_ranks.gather(row or unknown)
        except Exception as error:
            # A backend that cannot fails on every rank; a peer that died ends training by itself.
            self._apart = True
            self._guard.fail(error)
            return
        self._guard(lambda: self._digest(rows))
        if reset:
            self._clock.reset()
            self._watch.reset()
            self._samples, self._warm = 0, True

    def _row(self, reset: bool) -> list[float]:
        gpu = self._sampler.row(reset=reset) if self._sampler else telemetry.unknown()
        return [*self._clock.row(), *_memory(), *gpu, *self._watch.counts()]

    def _digest(self, rows: list[list[float]]) -> None:
        if not self._sinks.here and self._rank not in (0, self._gpus - 1):
            return
        split, memory, gpus, compiled = _parts(rows)
        values: dict[str, float] = {}
        if self._config.timers:
            seconds, data_seconds = step_times.over_ranks(split)
            values |= StepSplit(
                iterations=self._clock.iterations,
                profiled=self._clock.profiled,
                seconds=seconds,
                data_seconds=data_seconds,
                samples=self._samples,
                sequence_length=int(getattr(self._args, "seq_length", 0) or 0),
                flops=self._count_flops(),
                gpus=self._gpus,
                peak_tflops=self._peak_tflops,
            ).values()
            self._line = step_times.line(values)
            values |= compile_counts.values(compiled)
        if self._config.memory_at(self._iteration):
            for index, name in enumerate(MEMORY):
                values |= across_ranks.spread(f"memory/{name}", [row[index] for row in memory])
        values |= self._fleet.values(gpus)
        self._values = values
        if self._rank == 0:
            for slug, line in (
                *((Slug.GPU_SLOW, line) for line in self._fleet.complaints(gpus)),
                *self._complaints.of(compiled, warm=self._warm).items(),
            ):
                warn(slug, "iteration %d: %s", self._iteration, line)


def _parts(rows: list[list[float]]) -> list[list[list[float]]]:
    """Each of `_PARTS` of all ranks' rows: shape [parts, world size, fields of the part]."""
    ends = list(itertools.accumulate(map(len, _PARTS), initial=0))
    return [[row[start:end] for row in rows] for start, end in itertools.pairwise(ends)]


def _memory() -> list[float]:
    import torch

    if not torch.cuda.is_available():
        return [math.nan] * len(MEMORY)
    cuda = torch.cuda
    sizes = (cuda.memory_allocated(), cuda.memory_reserved(), cuda.max_memory_allocated())
    return [size / GIB for size in sizes]
