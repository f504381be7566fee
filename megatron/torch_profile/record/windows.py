# SPDX-License-Identifier: Apache-2.0
"""The windows of this rank that are still to come: those of the plan and those of requests."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, replace

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.schedule import Window


@dataclass(frozen=True, slots=True)
class RequestedWindow:
    """A window that is no part of the plan.

    Args:
        window: its iterations; none of them is in another window.
        config: what is recorded in it.
        ranks: who records it.
    """

    window: Window
    config: TorchProfileConfig
    ranks: tuple[int, ...]


class Windows:
    """They come in order, and `next` is the one that is open or comes first.

    Args:
        plan: whose windows, and of which rank.
    """

    def __init__(self, plan: CapturePlan) -> None:
        self._plan = plan
        self._planned: Iterator[Window] = iter(plan.schedule if plan.records_here else ())
        self._requested: list[RequestedWindow] = []
        self._closed = False
        self._first_planned = next(self._planned, None)

    @property
    def next(self) -> Window | None:
        """The window that is open or comes first; None if there is none."""
        requested = self._requested[0].window if self._requested else None
        planned = self._first_planned
        if requested is None or planned is None:
            return requested or planned
        return min(requested, planned, key=lambda window: window.first)

    def advance(self) -> None:
        """The next window is over."""
        if self._requested and self.next is self._requested[0].window:
            del self._requested[0]
        else:
            self._first_planned = next(self._planned, None)

    def add(self, requested: RequestedWindow) -> None:
        """Record another window; after `close` nothing is recorded any more."""
        if not self._closed:
            insort(self._requested, requested, key=lambda one: one.window.first)

    def plan_of(self, window: Window) -> CapturePlan:
        """What is recorded in a window, and on which ranks."""
        for one in self._requested:
            if one.window is window:
                return replace(self._plan, config=one.config, ranks=one.ranks)
        return self._plan

    def close(self) -> None:
        """There are no more windows."""
        self._closed = True
        self._requested.clear()
        self._planned, self._first_planned = iter(()), None
