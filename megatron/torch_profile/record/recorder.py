# SPDX-License-Identifier: Apache-2.0
"""The recorder: follows training iteration by iteration and records the plan's windows.

An open window (open_window.py) exists from its first warm-up iteration to its profiler's stop and
at no other time.

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

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from megatron.torch_profile.exits import at_exit
from megatron.torch_profile.export.background import Exporter
from megatron.torch_profile.export.limits import short_of_address_space
from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug, warn
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_profile.record import kineto
from megatron.torch_profile.record.iteration_times import IterationTimes
from megatron.torch_profile.record.open_window import OpenWindow
from megatron.torch_profile.record.other_profilers import OtherProfilers
from megatron.torch_profile.record.signals import FlushOnSignal, signals_that_ask
from megatron.torch_profile.record.window_end import WindowEnds
from megatron.torch_profile.record.windows import RequestedWindow, Windows
from megatron.torch_profile.signal_handlers import HeldHandlers
from megatron.torch_trace.wording import iterations

_ANOTHER = "another torch.profiler runs in this process, and torch runs one at a time"
_GPU_SECONDS = 20.0
"""How long the GPU may hold the end of a failed training; SLURM's KillWait is 30 s by default."""


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
        lost = f"rank {self.rank} stops profiling, training goes on"
        self._guard = Guard(Slug.PROFILING_STOPPED, lost, self.abandon)
        self.busy = False
        self._pid = os.getpid()
        self.signals = FlushOnSignal(self._flush, spared=signals_that_ask(plan.config))
        self.exporter = Exporter(plan.config.exit_timeout)
        self._plan = plan
        self._model = model
        self._metadata = metadata
        self.windows = Windows(plan)
        self._open: OpenWindow | None = None
        self._lost: OpenWindow | None = None
        self._others = OtherProfilers(self._give_way)
        self._ends = WindowEnds(plan, self.exporter, self._others)
        self._times = IterationTimes(plan, self._others, self.exporter)
        self.signals.install()
        at_exit(self.wait_at_exit)  # what is registered last is called first

    def begin_step(self, iteration: int) -> None:
        """Close what ended with the last iteration, and open what begins with this one."""
        self._undisturbed(self._begin_step, iteration)

    def end_step(self) -> None:
        """The iteration has ended, and the next one has not begun."""
        self._undisturbed(self._leave_step, self._times.end_step)

    def begin_pause(self) -> None:
        """After the last recorded iteration, close the window before something else runs."""
        self._undisturbed(self._leave_step, self._times.pause)

    def add(self, requested: RequestedWindow) -> None:
        """Record a window that is no part of the plan, when its iterations come."""
        self._undisturbed(self.windows.add, requested)

    def close(self, *, after_failure: bool = False) -> None:
        """Export what there is; a window that is not complete is marked partial."""
        self._undisturbed(self._close, after_failure)

    def _undisturbed(self, do: Callable[..., None], *args: Any) -> None:
        """A failure ends profiling on this rank and nothing else; a signal is served after it."""
        if os.getpid() != self._pid:  # a fork of training: the window is not its own
            return
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
        self._times.begin_step(iteration, self._open)
        if self._open is not None:
            self._open.end_step()
        self._end_if_asked()
        window = self.windows.next
        if window is not None and (iteration > window.last or self._must_end_early()):
            if self._open is not None:
                self._finish()
            # Megatron can skip iterations (--iterations-to-skip), and whole windows with them.
            while self.windows.next is not None and iteration > self.windows.next.last:
                warn(Slug.WINDOW_SKIPPED, "training skipped %s", iterations(self.windows.next))
                self.windows.advance()
        self.exporter.poll()
        window = self.windows.next
        if window is None or iteration < window.first - window.warmup:
            return
        if self._open is None and not self._prepare(window, iteration):
            return
        if self._open is not None and self._open.begin_step(iteration):
            self._times.window_starts(iteration)

    def _prepare(self, window: Window, iteration: int) -> bool:
        """Have the profiler of a window warm up; False if that cannot be now."""
        self._discard_lost()
        if self._ends.in_the_way(window, iteration, lambda: self.signals.pending):
            return False
        why_not = _ANOTHER if self._others.running else short_of_address_space()
        if why_not:
            if iteration >= window.first:
                self._warn(Slug.WINDOW_LEFT_OUT, "leaves out %s: %s", iterations(window), why_not)
                self.windows.advance()
            return False
        self.exporter.make_room(lambda: self.signals.pending)
        self._others.hold()
        metadata = {**self._metadata, **self._times.window_opens()}
        self._open = OpenWindow(
            self.windows.plan_of(window),
            window,
            self._model,
            metadata,
            lambda: self.exporter.expected_mb(1),
            self._ends.decide(),
        )
        return True

    def _leave_step(self, note: Callable[[OpenWindow | None], None]) -> None:
        note(self._open)
        self._end_if_asked()
        self.exporter.free_saved()
        if self._open is not None and self._open.recorded[-1:] == [self._open.window.last]:
            self._finish()

    def _close(self, after_failure: bool) -> None:
        if self._open is not None:
            self._finish(unclean=after_failure)
        self._discard_lost()
        self.exporter.free_saved()
        self.windows.close()
        self._model = None
        self._times.close()
        self._others.close()
        # Last: a signal that has come meanwhile is served when all this is done.
        self.signals.remove()

    def wait_at_exit(self) -> None:
        """The process ends when its traces are written; so does a signal that comes now wait."""
        if os.getpid() != self._pid:
            return
        if self.exporter.in_flight:
            self.signals.install()
        self.busy = True
        try:
            with HeldHandlers():
                self.exporter.wait()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            self._warn(Slug.EXPORT_FAILED, "does not wait for its traces: %s", why)
        finally:
            self.busy = False
            self.signals.remove()
            self.signals.serve_pending()

    def _flush(self, number: int, dies: bool) -> bool:
        """A signal has come: save what there is. False if that must wait for what is under way."""
        if self.busy:
            return False
        if (self._open is not None and self._open.recorded) or self.exporter.in_flight:
            name, after = signal.Signals(number).name, ", then ending" if dies else ""
            self._warn(Slug.SIGNAL, "received %s: saving what is recorded%s", name, after)
        self.exporter.hurry()
        self._undisturbed(self._end_of_training, dies)
        return True

    def _end_of_training(self, dies: bool) -> None:
        if self._open is not None:
            self._finish(unclean=dies, cut=True)
        self.windows.close()
        if dies:
            self.exporter.wait()

    def _give_way(self) -> None:
        """Another profiler begins in the thread that trains."""
        if not self.busy:
            self._undisturbed(self._end_for_another, True)

    def _end_if_asked(self) -> None:
        if self._others.asked or self._others.cancelled:
            self._end_for_another(False)

    def _end_for_another(self, in_a_step: bool) -> None:
        window = self._open
        if window is None:
            return
        if window.recorded:
            self._say_ends(_ANOTHER)
            self._finish(cut=in_a_step)
        else:
            # In the warm-up: the window may still come, if the other one is over by then.
            self._open = None
            window.close_spans()
            if not self._others.cancelled:
                window.discard()
            self._others.release()

    def abandon(self) -> None:
        """Let go of the profiler and the signals after a failure, quietly."""
        self.signals.remove()
        window, self._open = self._open, None
        self._model = None
        if window is not None and not self._others.cancelled:
            window.abandon()
        self._others.close()

    def _must_end_early(self) -> bool:
        why = self._open.limit_reached() if self._open is not None else None
        if why:
            self._say_ends(why)
        return why is not None

    def _say_ends(self, why: str) -> None:
        said = "ends the window of %s: %s"
        self._warn(Slug.WINDOW_ENDED_EARLY, said, iterations(self.windows.next), why)

    def _finish(self, *, unclean: bool = False, cut: bool = False) -> None:
        """Stop the open window and hand its trace over; the next one is next.

        Args:
            unclean: training has failed or must end, so the GPU may wait for a rank that is gone.
            cut: it ends in the middle of an iteration.
        """
        if self._open is not None:
            self._open.close()
        window, self._open = self._open, None
        self.windows.advance()
        if window is None:
            return
        if self._others.cancelled:
            # Stopped now, it would take the other one's events.
            self._lost = window
            return self._lose(window, "another profiler began before ours could be stopped")
        if unclean and not kineto.gpu_is_done(_GPU_SECONDS):
            why = f"its GPU still waits after {_GPU_SECONDS:.0f} s, maybe for a rank that is gone"
            return self._lose(window, why)
        if not window.recorded:
            window.discard()
            self._others.release()
            said = "training ended in the warm-up of %s: no trace"
            return warn(Slug.WINDOW_NOT_BEGUN, said, iterations(window.window))
        lost = self._ends.end(window, self.windows.next, cut=cut)
        if lost:
            return self._lose(window, lost)
        self._ends.say_if_short(window, cut=cut)
        self._times.window_closed(window.window)

    def _discard_lost(self) -> None:
        """A profiler that was cancelled is stopped when the one that did it has ended."""
        if self._lost is not None and not self._others.seen:
            lost, self._lost = self._lost, None
            lost.discard()

    def _warn(self, slug: Slug, message: str, *values: object) -> None:
        warn(slug, f"rank %d {message}", self.rank, *values)

    def _lose(self, window: OpenWindow, why: str) -> None:
        self._warn(Slug.WINDOW_LOST, "loses the window of %s: %s", iterations(window.window), why)
