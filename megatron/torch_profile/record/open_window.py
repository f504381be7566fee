# SPDX-License-Identifier: Apache-2.0
"""One window from its first warm-up iteration to the profiler's stop, and all that is open in it.

Nothing of it exists between windows, so there is nothing then that could cost anything.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from megatron.torch_profile.export.ending_thread import Recording
from megatron.torch_profile.export.limits import WindowLimits
from megatron.torch_profile.followers import followers
from megatron.torch_profile.log import Slug, warn
from megatron.torch_profile.memory.rank_memory import WindowMemory
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_profile.record import cupti, kineto
from megatron.torch_profile.record.stop_decision import Decision
from megatron.torch_profile.record.trace_metadata import TraceNotes
from megatron.torch_profile.spans import ranges
from megatron.torch_profile.spans.garbage_collections import GarbageCollections
from megatron.torch_profile.spans.window_spans import Spans
from megatron.torch_trace import wording

_CLOCK_SECONDS = 0.5
"""More than a clock that is merely corrected moves in a window."""


class OpenWindow:
    """A window whose profiler warms up, or records.

    Args:
        plan: what is recorded.
        window: which of its windows.
        model: Megatron's list of model chunks, for module spans.
        metadata: what every trace says of itself.
        expected_mb: raw size of one iteration, from the trace before; None if there is none.
        decision: who is to stop its profiler, as far as is known.
    """

    def __init__(
        self,
        plan: CapturePlan,
        window: Window,
        model: Any,
        metadata: dict[str, Any],
        expected_mb: Callable[[], float | None],
        decision: Decision,
    ) -> None:
        self.window = window
        self.recorded: list[int] = []
        self.decision = decision
        self.profiler = kineto.prepared(plan, window, beside=decision.ending.beside)
        self._plan = plan
        self._config = plan.config
        self._model = model
        self._metadata = metadata
        self._expected_mb = expected_mb
        self._limits: WindowLimits | None = None
        self._clock = 0.0
        self._step: Any = None
        self._spans: Spans | None = None
        self._collections = GarbageCollections(everywhere=decision.ending.beside)
        self._notes: TraceNotes | None = None
        self._memory: WindowMemory | None = None

    @property
    def whole(self) -> bool:
        """Whether all of its iterations were recorded."""
        return self.recorded == list(range(self.window.first, self.window.last + 1))

    def begin_step(self, iteration: int) -> bool:
        """An iteration begins, in the warm-up or in the window.

        What gives names in the trace is in place from the first one of the warm-up on: what its
        first calls load, compile and allocate is no part of the recording then.

        Returns:
            Whether the recording begins with it.
        """
        if self._spans is None and (self._config.wanted_spans or self._config.no_operators):
            self._spans = Spans(self._config, self._model)
        if self._spans is not None:
            self._spans.begin_step()
        if iteration < self.window.first:
            return False
        starts = not self.recorded
        if starts:
            self._start()
        self.recorded.append(iteration)
        self._step = ranges.begin(f"ProfilerStep#{iteration}")
        return starts

    def end_step(self) -> None:
        """The iteration has ended, if one was recorded."""
        if self._step is not None:
            step, self._step = self._step, None
            ranges.end(step)

    def limit_reached(self) -> str | None:
        """Why it must end now, or None."""
        if self._limits is None or not self.recorded:
            return None
        return self._limits.reached(len(self.recorded))

    def estimated_mb(self) -> float:
        """Raw size of the trace so far."""
        return self._limits.estimated_mb(len(self.recorded)) if self._limits else 0.0

    def close_spans(self) -> None:
        """Take back what gives names in the trace."""
        self._collections.close()
        self.end_step()
        if self._spans is not None:
            spans, self._spans = self._spans, None
            spans.close()

    def close(self) -> None:
        """The window is over: take back its spans, and take what the allocator has kept of it."""
        self.close_spans()
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.end()

    def stop(self, following: Window | None) -> float:
        """Stop the profiler, whose result then waits to be saved.

        Args:
            following: the next window.

        Returns:
            How long Kineto's stop took, in seconds.
        """
        self._complete(following)
        return kineto.stop(self.profiler)

    def end_beside(self, following: Window | None) -> tuple[Callable[[], Recording], float] | None:
        """End it, but for the profiler's stop; see `kineto.end_beside`.

        Args:
            following: the next window.
        """
        self._complete(following)
        return kineto.end_beside(self.profiler)

    def _complete(self, following: Window | None) -> None:
        if self._notes is not None:
            self._notes.complete()
            self._notes = None
        self._say_if_the_clock_moved()
        gap = following.first - following.warmup - self.recorded[-1] - 1 if following else None
        cupti.before_stop(gap, os.environ)

    def _say_if_the_clock_moved(self) -> None:
        # torch gives events the time of a clock that can be set, right or wrong.
        moved = _clock_is_ahead() - self._clock
        if abs(moved) > _CLOCK_SECONDS:
            warn(
                Slug.CLOCK_SET,
                "the system's clock was set %s by %s in the window of %s: times in its "
                "trace are wrong; record another window",
                "forward" if moved > 0 else "back",
                wording.seconds(abs(moved)),
                wording.iterations(self.window),
            )

    def discard(self) -> None:
        """End it without a trace."""
        self.close_spans()
        self._close_memory()
        beside = self.decision.ending.beside
        kineto.discard(self.profiler, started=bool(self.recorded), beside=beside)

    def abandon(self) -> None:
        """End it without a trace, quietly: something has failed."""
        for close in (self.end_step, self.close_spans, self._close_memory, self._close_notes):
            with suppress(Exception):
                close()
        with suppress(Exception):
            self.discard()

    def _start(self) -> None:
        self._limits = WindowLimits(self._config.max_trace_mb, self._expected_mb)
        if followers.memory is not None:
            self._memory = followers.memory.begin(self._plan, self.window)
        kineto.start(self.profiler)
        self._clock = _clock_is_ahead()
        self._notes = TraceNotes(self.profiler, self._metadata, self.window, self._collections)
        if self._spans is not None:
            self._spans.start()

    def _close_memory(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.abandon()

    def _close_notes(self) -> None:
        notes, self._notes = self._notes, None
        if notes is not None:
            notes.close()


def _clock_is_ahead() -> float:
    """Seconds by which the system's clock is ahead of the one that nobody sets.

    A process may be held up between its looks at two clocks: the tightest of some pairs counts.
    """
    pairs = []
    for _ in range(5):
        before, clock, after = time.monotonic(), time.time(), time.monotonic()
        pairs.append((after - before, clock - before))
    return min(pairs)[1]
