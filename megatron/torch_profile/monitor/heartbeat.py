# SPDX-License-Identifier: Apache-2.0
"""Where the training loop of this rank is, noted by the loop itself and read by threads beside it.

Notes are plain attributes: training pays for an assignment, and threads see a moment old values.
"""

from __future__ import annotations

import threading
import time


class Heartbeat:
    """One call of `train` on this rank.

    Attributes:
        iteration: the one that runs; 0 before the first.
        since_ns: when it began, or when the last pause in it ended; `time.monotonic_ns`.
        paused: what runs in place of an iteration, such as `evaluation`; None in an iteration.
        logged: the last iteration in Megatron's log, and when, ns since 1970.
        thread: the one that trains.
    """

    def __init__(self) -> None:
        self.iteration = 0
        self.since_ns = time.monotonic_ns()
        self.paused: str | None = None
        self.logged: tuple[int, int] | None = None
        self.thread = threading.get_ident()

    def begin_step(self, iteration: int) -> None:
        """An iteration begins."""
        self.since_ns = time.monotonic_ns()
        self.iteration = iteration

    def begin_pause(self, name: str) -> None:
        """Evaluation or a checkpoint begins."""
        self.paused = name

    def end_pause(self) -> None:
        """It has ended."""
        self.since_ns = time.monotonic_ns()
        self.paused = None

    def log(self, iteration: int) -> None:
        """Megatron is about to log an iteration."""
        self.logged = (iteration, time.time_ns())
