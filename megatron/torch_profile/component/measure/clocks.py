# SPDX-License-Identifier: Apache-2.0
"""How long steps take: by CUDA events on a GPU, by the host's clock without one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

_QUEUED_STEPS = 10
_LONGEST_WAIT_CYCLES = 200_000_000
"""About a tenth of a second."""
_CYCLES_PER_NS = 2.0
"""No GPU runs much faster."""
_FLUSHED_BYTES = 256 << 20
"""More than the L2 cache of any GPU; triton.testing.do_bench overwrites as much."""


class Steps(Protocol):
    """What is measured."""

    def prepare(self) -> None:
        """Before each step, not measured."""

    def __call__(self) -> None:
        """The step."""

    def check_shapes(self) -> None:
        """After each step, not measured."""


class Clock(Protocol):
    """Measures steps."""

    name: str

    def times(self, steps: Steps, count: int) -> list[int]:
        """How long each of `count` steps takes, in ns."""

    def queued(self, steps: Steps, step_ns: float) -> list[int]:
        """How long a few steps take whose calls wait for the device already, in ns.

        Args:
            step_ns: how long a step takes otherwise.
        """


class HostClock:
    """The host's clock around each step: for devices that work while they are called.

    Args:
        now: ns.
    """

    name = "perf_counter"

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now = now

    def times(self, steps: Steps, count: int) -> list[int]:
        """How long each of `count` steps takes, in ns."""
        found = []
        for _ in range(count):
            steps.prepare()
            began = self._now()
            steps()
            found.append(self._now() - began)
            steps.check_shapes()
        return found

    def queued(self, steps: Steps, step_ns: float) -> list[int]:
        """None: such a device has no queue."""
        return []


class EventClock:
    """Two CUDA events around each step, read when all of them are done.

    Nothing waits between steps, so that the CPU is ahead of the GPU where it can be.

    Args:
        flush: overwrite the L2 cache before each step, so that each one reads from memory.
    """

    name = "CUDA events"

    def __init__(self, *, flush: bool) -> None:
        self._cache: Any = None
        if flush:
            self._cache = torch.empty(_FLUSHED_BYTES // 4, dtype=torch.int32, device="cuda")

    def times(self, steps: Steps, count: int) -> list[int]:
        """How long each of `count` steps takes, in ns."""
        begins = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
        torch.cuda.synchronize()
        for begin, end in zip(begins, ends, strict=True):
            steps.prepare()
            if self._cache is not None:
                self._cache.zero_()
            begin.record()
            steps()
            end.record()
            steps.check_shapes()
        torch.cuda.synchronize()
        return _between(begins, ends)

    def queued(self, steps: Steps, step_ns: float) -> list[int]:
        """How long a few steps take whose calls wait for the GPU already, in ns.

        A kernel that does nothing keeps the GPU busy for twice as long as a step takes, so that the
        CPU has made all calls of the step before the GPU begins it.
        """
        begins = [torch.cuda.Event(enable_timing=True) for _ in range(_QUEUED_STEPS)]
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(_QUEUED_STEPS)]
        cycles = min(_LONGEST_WAIT_CYCLES, int(2 * step_ns * _CYCLES_PER_NS))
        for begin, end in zip(begins, ends, strict=True):
            torch.cuda.synchronize()
            steps.prepare()
            torch.cuda._sleep(cycles)
            if self._cache is not None:
                self._cache.zero_()
            begin.record()
            steps()
            end.record()
        torch.cuda.synchronize()
        return _between(begins, ends)


def _between(begins: list[torch.cuda.Event], ends: list[torch.cuda.Event]) -> list[int]:
    """From each begin to its end, in ns."""
    return [round(1e6 * begin.elapsed_time(end)) for begin, end in zip(begins, ends, strict=True)]


def clock_of(device: str, *, flush: bool) -> Clock:
    """The clock for a device."""
    return EventClock(flush=flush) if device == "cuda" else HostClock()
