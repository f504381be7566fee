# SPDX-License-Identifier: Apache-2.0
"""Where the training loop of this rank is, noted by the loop itself and read by threads beside it.

Notes are plain attributes: training pays for an assignment, and threads see a moment old values.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug
from megatron.torch_profile.monitor.iterations.monitor import Monitor
from megatron.torch_profile.monitor.iterations.parts import PAUSE
from megatron.torch_profile.monitor.iterations.phase_clock import PhaseClock
from megatron.torch_profile.monitor.iterations.sampling import Sampling


class Heartbeat:
    """One call of `train` on this rank.

    Attributes:
        iteration: the one that runs; 0 before the first.
        since_ns: when it began, or when the last pause in it ended; `time.monotonic_ns`.
        paused: what runs in place of an iteration, such as `evaluation`; None in an iteration.
        paused_ns: when the last pause began.
        logged: the last iteration in Megatron's log, and when, ns since 1970.
        thread: the one that trains.

    Args:
        clock: told of iterations and pauses too, if there is a monitor.
        is_recorded: whether a window is in an iteration.
        monitor: whose clock it is.
        sampling: which iterations the clock measures in their parts.
    """

    def __init__(
        self,
        clock: PhaseClock | None = None,
        is_recorded: Callable[[int], bool] = lambda iteration: False,
        monitor: Monitor | None = None,
        sampling: Sampling | None = None,
    ) -> None:
        self.monitor = monitor
        self.clock = clock
        self._is_recorded = is_recorded
        self._was_recorded = False
        self._guard = Guard(Slug.MONITOR_FAILED, "training goes on without the monitor")
        self.ended: Callable[[int, float, bool], None] | None = None
        """Told of an iteration that has ended: ms by the host's clock, whether it is no ordinary
        one."""
        self._disturbed = True
        self._sampling = sampling or Sampling()
        self.iteration = 0
        self.since_ns = time.monotonic_ns()
        self._took_ns: int | None = None
        self.paused: str | None = None
        self.paused_ns = self.since_ns
        self.logged: tuple[int, int] | None = None
        self.thread = threading.get_ident()

    def begin_step(self, iteration: int) -> None:
        """An iteration begins."""
        now = time.monotonic_ns()
        took = now - self.since_ns if self._took_ns is None else self._took_ns
        ended, self.iteration = (self.iteration, took), iteration
        self.since_ns, self.paused, self._took_ns = now, None, None
        if self.clock is not None or self.ended is not None:
            self._guard(self._tell, iteration, *ended)

    def end_step(self, name: str) -> None:
        """An iteration has ended, and the next one has not begun.

        Args:
            name: what runs meanwhile.
        """
        self._took_ns = time.monotonic_ns() - self.since_ns
        self.paused = name

    def begin_pause(self, name: str) -> None:
        """Evaluation or a checkpoint begins."""
        self.paused_ns = time.monotonic_ns()
        self.paused = name
        self._disturbed = True
        if self.clock is not None:
            self._guard(self.clock.disturb)
            self._guard(self.clock.begin, PAUSE)

    def end_pause(self) -> None:
        """It has ended."""
        if self.clock is not None:
            self._guard(self.clock.end, PAUSE)
        self.since_ns = time.monotonic_ns()
        self.paused = None

    def log(self, iteration: int) -> None:
        """Megatron is about to log an iteration."""
        self.logged = (iteration, time.time_ns())

    def close(self) -> None:
        """Training has ended."""
        if self.clock is not None:
            self._guard(self.clock.close)

    def _tell(self, iteration: int, ended: int, ended_ns: int) -> None:
        # The profiler stops in the iteration after a window.
        was, self._was_recorded = self._was_recorded, self._is_recorded(iteration)
        disturbed, self._disturbed = self._disturbed, was or self._was_recorded
        if self.clock is not None:
            in_parts = self._sampling.in_parts(iteration, ended_ns, disturbed=disturbed)
            self.clock.begin_step(iteration, disturbed=self._disturbed, in_parts=in_parts)
        if self.ended is not None:
            self.ended(ended, ended_ns / 1e6, disturbed)
