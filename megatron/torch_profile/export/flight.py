# SPDX-License-Identifier: Apache-2.0
"""One trace on its way to disk."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from megatron.torch_profile.export.ending_thread import EndingThread
from megatron.torch_profile.export.trace_export import Export
from megatron.torch_profile.export.writers import Writer


@dataclass
class Flight:
    """One trace on its way to disk.

    Args:
        planned: where it goes.
        profiler: holds the result, should it have to be saved again; None if nothing does.
        held_seconds: how long training was held for it.
        process: who writes it.
        pace: CPU seconds of the process, and when they were read.
        started: when its hand-over began, which is before anybody can have finished it, in seconds
            of the monotonic clock.
        spoke: when the log last told of it, on the same clock.
    """

    planned: Export
    profiler: Any
    held_seconds: float
    process: Writer
    pace: tuple[float, float] = (0.0, 0.0)
    started: float = field(default_factory=time.monotonic)
    spoke: float = field(default_factory=time.monotonic)

    @property
    def export(self) -> Export:
        """Where it goes, as far as is known."""
        return self.process.export if isinstance(self.process, EndingThread) else self.planned

    @property
    def stopping(self) -> bool:
        """Whether its profiler is still being stopped: the process must not end under that."""
        return isinstance(self.process, EndingThread) and self.process.stopping
