# SPDX-License-Identifier: Apache-2.0
"""A profiler whose stop lasts as long as a test wants, and the file that its window becomes."""

from __future__ import annotations

import time
from typing import Any

import pytest
from gates import Gate, before_each, until

from megatron.torch_profile.export import native_profiler
from megatron.torch_profile.export.native_profiler import NativeProfiler, Result

needs_stop_in_a_thread = pytest.mark.skipif(
    native_profiler.native_profiler() is None,
    reason="this torch cannot stop its profiler from another thread on this machine",
)

TRACE = "iter-0000003/rank-0.pt.trace.json.gz"
WAITS = "waits for the last window"
"""What the log says when training waits for the window before."""


def stops_wait_at(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stop of the profiler in a thread."""
    before_each(monkeypatch, NativeProfiler, "stop", gate.go_through)


def stops_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long enough that who does not wait for it is earlier."""
    before_each(monkeypatch, NativeProfiler, "stop", lambda: time.sleep(0.5))


def saves_wait_at(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each save of what a thread has stopped."""
    before_each(monkeypatch, Result, "save", gate.go_through)


def last_until_training_waits(
    kind: Any, name: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stop, or save, of a window goes on when the log says that training waits for one."""
    before_each(monkeypatch, kind, name, lambda: until(lambda: any(WAITS in line for line in said)))
