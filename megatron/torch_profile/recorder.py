# SPDX-License-Identifier: Apache-2.0
"""The recorder: follows training iteration by iteration and records the plan's windows.

A profiler (kineto.py) exists from the first warm-up iteration of
a window to the export of its trace and at no other time, so between windows there is nothing that
could cost anything.

    iteration       12        13        14        15        16
                    |warm-up  |ProfilerStep#13    |train_step 15 begins:
                    |         |         |ProfilerStep#14   the window closes and is exported
                    prepare   start                        (or evaluation, a checkpoint or the
                                                            end of training, if that comes first)

A step begins with Megatron's `train_step` and ends where the next one begins, so it holds the
logging between them; micro-batches are inside. Evaluation and checkpoints after the last recorded
iteration are not recorded.
"""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from torch.profiler import record_function

from megatron.torch_profile import cupti, kineto
from megatron.torch_profile.background import Exporter
from megatron.torch_profile.export import Export
from megatron.torch_profile.guard import Guard
from megatron.torch_profile.limits import WindowLimits
from megatron.torch_profile.log import logger
from megatron.torch_profile.pace import Pace
from megatron.torch_profile.plan import CapturePlan
from megatron.torch_profile.schedule import Window
from megatron.torch_profile.signals import FlushOnSignal
from megatron.torch_profile.spans import Spans
from megatron.torch_profile.trace_notes import TraceNotes
from megatron.torch_trace import wording

_GPU_SECONDS = 20.0
"""How long the end of a training that failed or must end is held for the GPU; SLURM's KillWait is
30 s by default."""


class Recorder:
    """Records the windows of a plan on this rank.

    Args:
        plan: what to record.
        model: Megatron's list of model chunks, for module spans.
        metadata: goes into every trace under the key `torch_profile`, beside the window.
    """

    def __init__(self, plan: CapturePlan, model: Any, metadata: dict[str, Any]) -> None:
        # Errors, not the stages that Kineto would print on every rank.
        os.environ.setdefault("KINETO_LOG_LEVEL", "4")
        self.rank = plan.topology.rank
        self._guard = Guard(f"rank {self.rank} stops profiling, training goes on", self.abandon)
        self.busy = False
        self.signals = FlushOnSignal(self._flush)
        self.exporter = Exporter(plan.config.export, plan.config.exit_timeout)
        self._plan = plan
        self._model = model
        self._metadata = metadata
        self._windows: Iterator[Window] = iter(plan.schedule)
        self._next: Window | None = next(self._windows, None)
        self._profiler: Any = None
        self._recorded: list[int] = []
        self._limits: WindowLimits | None = None
        self._pace = Pace()
        self._step: ExitStack | None = None
        self._spans: Spans | None = None
        self._notes: TraceNotes | None = None
        self.signals.install()
        atexit.register(self.wait_at_exit)  # what is registered last is called first

    def begin_step(self, iteration: int) -> None:
        """Close what ended with the last iteration, and open what begins with this one."""
        self._undisturbed(self._begin_step, iteration)

    def begin_pause(self) -> None:
        """After the last recorded iteration, close the window before something else runs."""
        self._undisturbed(self._begin_pause)

    def close(self, *, after_failure: bool = False) -> None:
        """Export what there is; a window that is not complete is marked partial."""
        self._undisturbed(self._close, after_failure)

    def _undisturbed(self, do: Callable[..., None], *args: Any) -> None:
        """A failure ends profiling on this rank and nothing else; a signal is served after it."""
        if self._guard.failed:
            with suppress(Exception):  # earlier traces are still being written, and held in memory
                self.exporter.poll()
            return
        self.busy = True
        try:
            self._guard(do, *args)
        finally:
            self.busy = False
            self.signals.serve_pending()

    def _begin_step(self, iteration: int) -> None:
        compared = self._pace.begin_step(outside=self._profiler is None)
        if compared:
            logger.info("rank %d: %s", self.rank, compared)
        self._end_step()
        window = self._next
        if window is not None and (iteration > window.last or self._must_end_early(window)):
            self._finish(window)
            # Megatron can skip iterations (--iterations-to-skip), and whole windows with them.
            while self._next is not None and iteration > self._next.last:
                logger.warning("iterations %s were skipped by training", self._next)
                self._next = next(self._windows, None)
            window = self._next
        self.exporter.poll()
        if window is None or iteration < window.first - window.warmup:
            return
        if self._profiler is None:
            self.exporter.make_room(lambda: self.signals.pending)
            self._profiler = kineto.prepared(self._plan, window)
        if iteration >= window.first:
            if not self._recorded:
                self._start(window)
            if self._spans is not None:
                self._spans.begin_step()
            self._recorded.append(iteration)
            self._step = ExitStack()
            self._step.enter_context(record_function(f"ProfilerStep#{iteration}"))

    def _begin_pause(self) -> None:
        self._pace.pause()
        self.exporter.free_saved()
        if self._next is not None and self._recorded and self._recorded[-1] == self._next.last:
            self._end_step()
            self._finish(self._next)

    def _close(self, after_failure: bool) -> None:
        self._end_step()
        if self._next is not None and self._profiler is not None:
            self._finish(self._next, unclean=after_failure)
        self.exporter.free_saved()
        self._next = self._model = None
        # Last: a signal that has come meanwhile is served when all this is done.
        self.signals.remove()

    def wait_at_exit(self) -> None:
        """The process ends when its traces are written; so does a signal that comes now wait."""
        if self.exporter.in_flight:
            self.signals.install()
        self.busy = True
        try:
            self.exporter.wait()
        except Exception as error:
            logger.warning("rank %d: %s: %s", self.rank, type(error).__name__, error)
        finally:
            self.busy = False
            self.signals.remove()
            self.signals.serve_pending()

    def _flush(self, number: int, dies: bool) -> bool:
        """A signal has come: save what there is. False if that must wait for what is under way."""
        if self.busy:
            return False
        if self._recorded or self.exporter.in_flight:
            name, after = signal.Signals(number).name, ", then ending" if dies else ""
            logger.warning("rank %d received %s: saving what is recorded%s", self.rank, name, after)
        self.exporter.hurry()
        self._undisturbed(self._end_of_training, dies)
        return True

    def _end_of_training(self, dies: bool) -> None:
        self._end_step()
        if self._next is not None and self._profiler is not None:
            self._finish(self._next, unclean=dies)
        self._next = None
        if dies:
            self.exporter.wait()

    def abandon(self) -> None:
        """Let go of the profiler and the signals after a failure, quietly."""
        self.signals.remove()
        for stack in (self._step, self._spans, self._notes):
            if stack is not None:
                with suppress(Exception):
                    stack.close()
        profiler, self._profiler = self._profiler, None
        self._step = self._spans = self._notes = self._model = None
        if profiler is not None:
            with suppress(Exception):
                kineto.discard(profiler, started=bool(self._recorded))

    def _must_end_early(self, window: Window) -> bool:
        if self._limits is None or not self._recorded:
            return False
        why = self._limits.reached(len(self._recorded))
        if why:
            logger.warning("rank %d ends the window of iterations %s: %s", self.rank, window, why)
        return why is not None

    def _start(self, window: Window) -> None:
        self._limits = WindowLimits(
            self._plan.config.max_trace_mb, lambda: self.exporter.expected_mb(1)
        )
        self._profiler.start_trace()
        self._notes = TraceNotes(self._profiler, self._metadata, window)
        if self._plan.config.wanted_spans:
            self._spans = Spans(self._plan.config, self._model)

    def _end_step(self) -> None:
        if self._step is not None:
            self._step.close()
            self._step = None

    def _finish(self, window: Window, *, unclean: bool = False) -> None:
        if self._spans is not None:
            self._spans.close()
            self._spans = None
        profiler, self._profiler = self._profiler, None
        recorded, self._recorded = self._recorded, []
        self._next = next(self._windows, None)
        if profiler is None:
            return
        if unclean and not kineto.gpu_is_done(_GPU_SECONDS):
            logger.warning(
                "rank %d loses the window of iterations %s: its GPU still waits after %.0f s, "
                "maybe for a rank that is gone",
                self.rank,
                window,
                _GPU_SECONDS,
            )
            return
        if not recorded:
            kineto.discard(profiler, started=False)
            logger.warning("training ended in the warm-up of iterations %s: no trace", window)
            return
        expected = self._limits.estimated_mb(len(recorded)) if self._limits else 0
        if self._notes is not None:
            self._notes.complete()
            self._notes = None
        following = self._next
        gap = following.first - following.warmup - recorded[-1] - 1 if following else None
        cupti.before_stop(gap, os.environ)
        stop_seconds = kineto.stop(profiler)
        self._pace.window_closed()
        # A signal comes in the middle of an iteration.
        cut = self.exporter.hurried
        complete = not cut and recorded == list(range(window.first, window.last + 1))
        if not complete:
            logger.warning(
                "rank %d: the window of iterations %s holds only %s%s",
                self.rank,
                window,
                wording.ranks(tuple(recorded)),
                " (the last in part)" if cut else "",
            )
        config = self._plan.config
        what = Export(
            rank=self.rank,
            window=window,
            recorded=tuple(recorded),
            folder=self._plan.window_folder(window),
            name=self._plan.trace_name(partial=not complete),
            scratch=Path(config.scratch_dir) if config.scratch_dir else None,
            key_averages=config.key_averages,
            partials=config.partials,
            stacks=config.stacks,
            gpu="cuda" in self._plan.activities,
            urgent=cut,
        )
        self.exporter.hand_over(
            profiler,
            what,
            stop_seconds=stop_seconds,
            expected_mb=expected,
            writers=self._plan.writers_here,
        )
