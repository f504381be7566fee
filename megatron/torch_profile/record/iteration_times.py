# SPDX-License-Identifier: Apache-2.0
"""Did the window leave training slower? Mean iteration time before it and after, by the host clock.

No synchronisation: iterations are timed from the start of one `train_step` to the next, which the
log interval's own synchronisation keeps honest over several iterations.
"""

from __future__ import annotations

import time

from megatron.torch_trace.wording import seconds

_AFTER = 5
"""Iterations to average after a window; the first one after it is left out: it catches up."""


class Pace:
    """Times iterations outside windows."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._before: list[float] = []
        self._after: list[float] | None = None

    def begin_step(self, *, outside: bool) -> str | None:
        """An iteration begins.

        Args:
            outside: whether the iteration that ends with this call lay outside of every window.

        Returns:
            Once after each window, the comparison in words.
        """
        now = time.perf_counter()
        began, self._began = self._began, now
        if began is None or not outside:
            return None
        if self._after is None:
            self._before.append(now - began)
            # The first iteration of a process, which compiles and allocates, and the last five.
            del self._before[1:-_AFTER]
            return None
        self._after.append(now - began)
        if len(self._after) <= _AFTER:
            return None
        after, self._after = self._after[1:], None
        before, self._before = self._before[1:][-_AFTER:], [0.0, *after]
        if not before:
            return None
        old, new = sum(before) / len(before), sum(after) / len(after)
        return (
            f"mean iteration {seconds(old)} before the window ({len(before)}), "
            f"{seconds(new)} after it ({len(after)})"
        )

    def pause(self) -> None:
        """Evaluation or a checkpoint runs in this iteration: it tells nothing of the pace."""
        self._began = None

    def window_closed(self) -> None:
        """A window has just closed."""
        self._after = []
