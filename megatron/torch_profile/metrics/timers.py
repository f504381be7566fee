# SPDX-License-Identifier: Apache-2.0
"""Megatron's timers, read while Megatron itself reads them for its log.

`Timers.log` gathers every rank's elapsed seconds in one all-gather. That very tensor is kept, so
nothing is read twice, nothing is reset that Megatron would not reset, no collective is added, and
every sink agrees with what Megatron prints. What is corrected is the divisor: Megatron divides by
`--log-interval` also where fewer iterations ran (the first interval, an interval after a resume).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reading:
    """All ranks' timers at one log.

    Args:
        names: names of the timers.
        seconds: shape [world size, timers], seconds since the timers were reset; 0 on a rank that
            does not run the timer (another pipeline stage's).
        divisor: iterations that those seconds cover.
    """

    names: Sequence[str]
    seconds: Sequence[Sequence[float]]
    divisor: float


def summarise(reading: Reading) -> dict[str, float]:
    """What all ranks' timers say. A rank that does not run a timer is left out, as Megatron does.

    Returns:
        For every timer that ran, in seconds per iteration and over the ranks that ran it:
        `timers/<name>-time` (maximum), `.../min`, `.../mean`, `.../slowest_rank` (the lowest of
        equals) and `.../imbalance` = maximum / mean, 1 where all are equal.
    """
    values: dict[str, float] = {}
    divisor = reading.divisor
    for index, name in enumerate(reading.names):
        ran = {rank: row[index] for rank, row in enumerate(reading.seconds) if row[index] > 0.0}
        if not ran:
            continue
        slowest = max(ran, key=ran.__getitem__)
        mean = math.fsum(ran.values()) / len(ran)
        key = f"timers/{name}-time"
        values[key] = ran[slowest] / divisor
        values[f"{key}/min"] = min(ran.values()) / divisor
        values[f"{key}/mean"] = mean / divisor
        values[f"{key}/slowest_rank"] = slowest
        values[f"{key}/imbalance"] = ran[slowest] / mean
    return values


class TimerLog:
    """Follows `Timers.log` of one training and counts the iterations that timers cover."""

    def __init__(self) -> None:
        self._covered = 0
        self._read: tuple[list[str], list[list[float]]] | None = None
        self._reading = False

    def count_iteration(self) -> None:
        """An iteration has ended; the timers hold its time from now on."""
        self._covered += 1

    def log(
        self, wrapped: Callable[..., Any], args: Any, kwargs: Any, *, per_iteration: bool
    ) -> tuple[Any, Reading | None]:
        """Call `Timers.log`.

        Args:
            wrapped: the method, with `args` and `kwargs` as Megatron gives them.
            args: positional arguments.
            kwargs: named arguments.
            per_iteration: whether these timers run in every iteration, so that their divisor is
                the number of iterations; a checkpoint's divisor is the caller's, which is 1.

        Returns:
            The method's result, and what it read, if anybody called `keep`.
        """
        bound = _bind(wrapped, args, kwargs)
        divisor, reset = 1.0, True
        if bound is not None:
            reset = bool(bound.arguments.get("reset", True))
            if per_iteration and self._covered and "normalizer" in bound.arguments:
                bound.arguments["normalizer"] = float(self._covered)
            divisor = float(bound.arguments.get("normalizer", 1.0))
            args, kwargs = bound.args, bound.kwargs
        self._read, self._reading = None, True
        try:
            result = wrapped(*args, **kwargs)
        finally:
            self._reading = False
        if per_iteration and reset:
            self._covered = 0
        read, self._read = self._read, None
        return result, Reading(*read, divisor) if read else None

    def keep(self, names: Any, gathered: Any) -> None:
        """Called with what Megatron gathered.

        Args:
            names: names of the timers.
            gathered: tensor of shape [world size, timers] in seconds; None without timers.
        """
        if self._reading and gathered is not None:
            self._read = (list(names), gathered.tolist())


def without_reset(wrapped: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments for `Timers.write` with which it leaves the timers alone.

    Up to core 0.14 it is called before `Timers.log`, more often, and resets: what follows then
    divides the time of one iteration by the number of several, and the log prints nothing.
    """
    bound = _bind(wrapped, args, kwargs)
    if bound is None or "reset" not in bound.arguments:
        return args, kwargs
    bound.arguments["reset"] = False
    return bound.args, bound.kwargs


def _bind(wrapped: Callable[..., Any], args: Any, kwargs: Any) -> inspect.BoundArguments | None:
    try:
        bound = inspect.signature(wrapped).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return None
    bound.apply_defaults()
    return bound
