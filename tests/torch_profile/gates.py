# SPDX-License-Identifier: Apache-2.0
"""A gate at which a thread or a forked process waits until the test lets it go on.

So what is under way is under way however slow the machine is, which no sleep can promise.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from typing import Any

import pytest

MINUTES = 300.0
"""Seconds that a test waits for what must come, and comes late on a busy machine; it fails then."""


def until(holds: Callable[[], object]) -> bool:
    """Wait until something holds; whether it does."""
    end = time.monotonic() + MINUTES
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


class Gate:
    """Shut until the test opens it; forks of the process see that, too."""

    def __init__(self) -> None:
        self._open, self._reached = mmap.mmap(-1, 1), mmap.mmap(-1, 1)

    @property
    def is_open(self) -> bool:
        return self._open[0] == 1

    @property
    def is_reached(self) -> bool:
        """Whether somebody waits there, or has gone through."""
        return self._reached[0] == 1

    def open(self) -> None:
        self._open[0] = 1

    def go_through(self) -> None:
        """Wait until it is open."""
        self._reached[0] = 1
        until(lambda: self.is_open)


def before_each(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, first: Callable[[], object]
) -> None:
    """Whoever calls a function or a method, in whichever process, calls `first` beforehand."""
    original = getattr(owner, name)

    def called(*args: Any, **options: Any) -> Any:
        first()
        return original(*args, **options)

    monkeypatch.setattr(owner, name, called)
