# SPDX-License-Identifier: Apache-2.0
"""Moments of an iteration: by the clock of the host, or by events on the GPU's compute stream.

An event is recorded, and asked much later whether it is done: nothing here waits for the GPU. When
it was recorded is noted too: that tells how far the thread that trains is ahead of the GPU.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from megatron.torch_profile.hooks import cuda_graphs


class Marks(Protocol):
    """Makes moments, and tells times between them."""

    def mark(self) -> Any:
        """This moment; None where it cannot be marked."""

    def adopt(self) -> None:
        """The thread that calls this is the one that will read; called once."""

    def reading(self) -> AbstractContextManager[bool]:
        """Around `done` and `between`: whether they may be asked now."""

    def done(self, mark: Any) -> bool:
        """Whether the moment has come."""

    def between(self, begin: Any, end: Any) -> float:
        """ms between two moments that have come."""

    def made_ms(self, mark: Any) -> float | None:
        """When training made it, by the host's clock; None where this is the moment itself."""

    def give_back(self, marks: Iterable[Any]) -> None:
        """They are needed no more."""


class HostMarks:
    """By the host's clock."""

    def mark(self) -> int:
        """Now, in ns."""
        return time.perf_counter_ns()

    def adopt(self) -> None:
        """Nothing to prepare."""

    def reading(self) -> AbstractContextManager[bool]:
        """They may."""
        return nullcontext(True)

    def done(self, mark: int) -> bool:
        """It has."""
        return True

    def between(self, begin: int, end: int) -> float:
        """ms."""
        return (end - begin) / 1e6

    def made_ms(self, mark: int) -> None:
        """The moment itself."""

    def give_back(self, marks: Iterable[int]) -> None:
        """Nothing to keep."""


@dataclass(slots=True)
class GpuMark:
    """An event, and when it was recorded, by the host's clock."""

    event: Any
    made_ns: int = 0


class GpuMarks:
    """Events on the stream that is current when this is made, used again and again."""

    def __init__(self) -> None:
        import torch

        self._new: Any = lambda: torch.cuda.Event(enable_timing=True)
        self._stream = torch.cuda.current_stream()
        self._device = torch.cuda.current_device()
        self._raw: Any = torch._C._cuda_getCurrentRawStream
        self._here = self._raw(self._device)
        self._captures: Any = torch.cuda.is_current_stream_capturing
        self._free: deque[GpuMark] = deque()
        self.made = 0

    def mark(self) -> GpuMark | None:
        """An event on the stream; None on another stream, or into a CUDA graph."""
        if self._raw(self._device) != self._here or self._captures():
            return None
        try:
            mark = self._free.pop()
        except IndexError:
            mark = GpuMark(self._new())
            self.made += 1
        mark.event.record(self._stream)
        mark.made_ns = time.perf_counter_ns()
        return mark

    def adopt(self) -> None:
        """A new thread begins on the first GPU, and would make a context of its own there."""
        import torch

        torch.cuda.set_device(self._device)

    def reading(self) -> AbstractContextManager[bool]:
        """Not while a CUDA graph is captured."""
        return cuda_graphs.between_captures()

    def done(self, mark: GpuMark) -> bool:
        """Whether the GPU has come there."""
        return bool(mark.event.query())

    def between(self, begin: GpuMark, end: GpuMark) -> float:
        """ms of the GPU's clock."""
        return float(begin.event.elapsed_time(end.event))

    def made_ms(self, mark: GpuMark) -> float:
        """ms of the host's clock."""
        return mark.made_ns / 1e6

    def give_back(self, marks: Iterable[GpuMark]) -> None:
        """For the next iterations."""
        self._free.extend(marks)
