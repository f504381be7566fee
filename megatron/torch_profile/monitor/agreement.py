# SPDX-License-Identifier: Apache-2.0
"""On which iterations a requested window lies: far enough ahead that every rank knows in time."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from heapq import merge
from typing import Any

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_profile.record.windows import RequestedWindow

LEAD_SECONDS = 10.0
LEAD_ITERATIONS = 3
"""What lies at least between the decision and the first warm-up iteration."""


class Pace:
    """How long an iteration takes, as a thread sees it that looks now and then."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._seconds: deque[float] = deque(maxlen=8)

    def see(self, iteration: int, now: float) -> None:
        """Training is in an iteration now; 0 before the first."""
        if self._last is not None and iteration > self._last[0] > 0:
            self._seconds.append((now - self._last[1]) / (iteration - self._last[0]))
        if self._last is None or iteration > self._last[0]:
            self._last = (iteration, now)

    @property
    def known(self) -> bool:
        """Whether an iteration has been timed."""
        return bool(self._seconds)

    def lead(self) -> int:
        """Iterations from now to the warm-up; the fastest lately, for a pause is no iteration."""
        fastest = max(min(self._seconds), 1e-6)
        return max(LEAD_ITERATIONS, math.ceil(LEAD_SECONDS / fastest))


def placed(
    begin: int, length: int, warmup: int, taken: Iterable[Window], more: Iterable[Window]
) -> tuple[Window, Window | None]:
    """A window that overlaps no other one, and the last one that it waits for.

    Args:
        begin: first iteration in which its profiler may warm up.
        length: iterations to record.
        warmup: iterations before them.
        taken: the plan's windows, ascending.
        more: other requested ones, ascending.
    """
    behind: Window | None = None
    for other in merge(taken, more, key=lambda window: window.first):
        if other.last < begin:
            continue
        if other.first - other.warmup >= begin + warmup + length:
            break
        begin, behind = other.last + 1, other
    return Window(begin + warmup, begin + warmup + length - 1, warmup), behind


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks are told of a request.

    Args:
        request: its name.
        first: first recorded iteration.
        last: last recorded iteration, included.
        warmup: iterations before `first` in which the profiler already runs.
        ranks: who records.
        spans: kinds of spans; None for those of the run.
        with_stack: also record Python stacks.
    """

    request: str
    first: int
    last: int
    warmup: int
    ranks: tuple[int, ...]
    spans: tuple[str, ...] | None
    with_stack: bool

    @property
    def window(self) -> Window:
        """Its iterations."""
        return Window(self.first, self.last, self.warmup)

    def as_text(self) -> str:
        """For the channel."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: bytes) -> Agreed:
        """From the channel."""
        fields: dict[str, Any] = json.loads(text)
        fields["ranks"] = tuple(fields["ranks"])
        fields["spans"] = tuple(fields["spans"]) if fields["spans"] is not None else None
        return cls(**fields)

    def requested(self, config: TorchProfileConfig) -> RequestedWindow:
        """For the recorder: what is special about this window, and all else as in the run."""
        if self.spans is not None:
            config = replace(config, spans=list(self.spans), with_modules=False)
            if "modules" not in self.spans:
                config = replace(config, spans_depth=None)
        config = replace(config, with_stack=config.with_stack or self.with_stack)
        return RequestedWindow(self.window, config, self.ranks)
