# SPDX-License-Identifier: Apache-2.0
"""`--torch-profile-trigger slow-iteration`: a slow iteration asks for a window, on rank 0."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.log import Slug, say
from megatron.torch_profile.monitor.iterations.judgement import Judge, Judged
from megatron.torch_trace import wording
from megatron.torch_trace.format.requests import Request, new_name

SLOWEST = "slowest"
_SETTLED = 20
"""Iterations that a median needs, without those in which a process settles."""
_UNSETTLED = 3
_PAST = 100


class SlowIterations:
    """Looks at every iteration, and asks where one takes too long.

    Args:
        config: when, how often, which ranks.
        ask: for a window.
        now: seconds, monotonic.
    """

    def __init__(
        self,
        config: TorchProfileConfig,
        ask: Callable[[str, Request], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._factor = config.trigger_factor
        self._left = config.trigger_windows
        self._apart = config.trigger_apart
        self._words = config.trigger_ranks
        self._ask = ask
        self._now = now
        self._seen = 0
        self._asked_at: float | None = None
        self._times: deque[float] = deque(maxlen=_PAST)

    def see_judged(self, judged: Judged, judge: Judge) -> None:
        """An iteration that the monitor has measured on all ranks."""
        known = judged.in_parts or self._words != [SLOWEST]
        self.see(
            judged.iteration,
            judged.total,
            judged.slowest if judged.in_parts else None,
            disturbed=judged.disturbed,
            asks=known,
        )

    def see(
        self,
        iteration: int,
        ms: float,
        slowest: int | None = None,
        *,
        disturbed: bool,
        asks: bool = True,
    ) -> None:
        """An iteration has ended.

        Args:
            iteration: which.
            ms: how long it took.
            slowest: the rank that was slowest in it, if it is known.
            disturbed: evaluation, a checkpoint or a window was in it.
            asks: whether it may ask; else it only counts.
        """
        self._seen += 1
        if disturbed or self._seen <= _UNSETTLED:
            return
        usual = median(self._times) if len(self._times) >= _SETTLED else None
        self._times.append(ms)
        if not asks or usual is None or ms <= self._factor * usual or not self._may_ask():
            return
        self._left -= 1
        self._asked_at = self._now()
        name = f"slow-{new_name()}"
        say(
            Slug.REQUEST,
            "iteration %d took %s, the median is %s: request %s asks for a window",
            iteration,
            wording.duration(ms * 1e6),
            wording.duration(usual * 1e6),
            name,
        )
        self._ask(name, Request(ranks=self._ranks(slowest)))

    def _may_ask(self) -> bool:
        rested = self._asked_at is None or self._now() - self._asked_at >= self._apart
        return self._left > 0 and rested

    def _ranks(self, slowest: int | None) -> tuple[str, ...] | None:
        if self._words == [SLOWEST]:
            return None if slowest is None else (str(slowest),)
        return tuple(self._words) if self._words else None
