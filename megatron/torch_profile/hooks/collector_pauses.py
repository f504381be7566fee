# SPDX-License-Identifier: Apache-2.0
"""How long Python's collector of cycles stopped this process.

The collector holds Python's lock while it works, so that no thread launches anything, and torch's
profiler records no event of it. Python calls whoever asks before and after each collection.
"""

from __future__ import annotations

import gc
import time
from contextlib import suppress
from typing import Any


class CollectorPauses:
    """Collections from `start` to `stop`, in this process, whichever thread they run in."""

    def __init__(self) -> None:
        self._began: int | None = None
        self._collections = 0
        self._time_ns = 0
        self._longest_ns = 0

    def start(self) -> None:
        """Begin to count."""
        gc.callbacks.append(self._hear)

    def stop(self) -> None:
        """End; a second call changes nothing."""
        with suppress(ValueError):
            gc.callbacks.remove(self._hear)

    def counts(self) -> dict[str, int]:
        """`collections`, and their `time_ns` and `longest_ns`."""
        return {
            "collections": self._collections,
            "time_ns": self._time_ns,
            "longest_ns": self._longest_ns,
        }

    def _hear(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = time.perf_counter_ns()
        elif self._began is not None:
            pause = time.perf_counter_ns() - self._began
            self._began = None
            self._collections += 1
            self._time_ns += pause
            self._longest_ns = max(self._longest_ns, pause)
