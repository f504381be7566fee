# SPDX-License-Identifier: Apache-2.0
"""Which iterations are measured in their parts, on all ranks the same, though no rank asks another.

Events around every collective cost a run that is bound by launches a few per cent of an iteration.
So only some iterations are measured in parts: a few at the start of a process, which tell how much
ranks vary; then one in `EVERY`; and those after a slow one, out of a budget that fills slowly.
"""

from __future__ import annotations

from collections import deque
from statistics import median

EVERY = 32
UNSETTLED = 3
"""First iterations of a process, which compile and tune."""
_LEARNING = 24
"""Iterations after these, which are measured in parts."""
SLOW = 1.05
"""Times the median. Ranks wait for each other, so all of them see the same iteration slow."""
_NOISE = 3.0
"""So many standard deviations, too."""
_CHOOSY = 0.25
"""Of the usual iteration, more as the second half of the budget is spent: what is left of it is for
clear cases."""
_KNOWN = 5
_PAST = 50
_CLOSELY = 3
"""Iterations that are measured in parts after a slow one."""
_BUDGET = 256
"""So many of them at most, and one more every `EVERY` iterations: some runs are always uneven."""


class Sampling:
    """Of one rank, for one call of `train`.

    Args:
        every: of so many iterations, one is measured in parts whatever happens.
    """

    def __init__(self, every: int = EVERY) -> None:
        self.every = every
        self._seen = 0
        self._until = 0
        self._left = _BUDGET * every
        self._lengths: deque[int] = deque(maxlen=_PAST)

    def in_parts(self, iteration: int, ended_ns: int, *, disturbed: bool) -> bool:
        """Whether an iteration that begins is measured in its parts.

        Args:
            iteration: global.
            ended_ns: how long the one before took.
            disturbed: that one was no ordinary one.
        """
        self._seen += 1
        if not disturbed and self._seen > 1 + UNSETTLED:
            self._see(iteration, ended_ns)
        if self._left < _BUDGET * self.every:
            self._left += 1
        if iteration % self.every == 0 or UNSETTLED < self._seen <= UNSETTLED + _LEARNING:
            return True
        if iteration > self._until or self._left < self.every:
            return False
        self._left -= self.every
        return True

    def _see(self, iteration: int, ended_ns: int) -> None:
        lengths = self._lengths
        if len(lengths) >= _KNOWN and self._is_slow(ended_ns):
            self._until = iteration + _CLOSELY - 1
        lengths.append(ended_ns)

    def _is_slow(self, ns: int) -> bool:
        usual = median(self._lengths)
        spent = 1.0 - self._left / (_BUDGET * self.every)
        if ns <= (SLOW + _CHOOSY * max(0.0, 2.0 * spent - 1.0)) * usual:
            return False
        deviation = 1.4826 * median(abs(length - usual) for length in self._lengths)
        return ns - usual > _NOISE * deviation
