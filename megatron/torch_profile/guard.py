# SPDX-License-Identifier: Apache-2.0
"""What runs in the middle of training for profiling's sake must not end it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from megatron.torch_profile.log import Slug, warn
from megatron.torch_profile.signal_handlers import was_raised_by_a_handler

T = TypeVar("T")


class Guard:
    """Calls what may fail: the first failure is said, and then nothing is called any more.

    What a handler of a signal raises is no failure, and passes through: training waits for it.

    Args:
        slug: of the line that says the failure.
        lost: what the failure costs: "training goes on without spans of modules".
        on_failure: called once, after the failure was said; its own failure is nobody's business.
    """

    def __init__(self, slug: Slug, lost: str, on_failure: Callable[[], None] | None = None) -> None:
        self._slug = slug
        self._lost = lost
        self._on_failure = on_failure
        self.failed = False

    def __call__(self, do: Callable[..., T], *args: Any) -> T | None:
        """What `do` returns; None where it failed, now or before."""
        if self.failed:
            return None
        try:
            return do(*args)
        except Exception as error:
            self.fail(error)
            return None

    def fail(self, error: Exception) -> None:
        """Say a failure, and call nothing any more.

        Args:
            error: as it was caught; raised again if a handler of a signal has raised it.
        """
        if was_raised_by_a_handler(error):
            raise error
        self.failed = True
        warn(self._slug, "%s: %s: %s", self._lost, type(error).__name__, error)
        if self._on_failure is not None:
            with suppress(Exception):
                self._on_failure()

    def around(self, hook: Callable[..., None]) -> Callable[..., None]:
        """A hook that returns nothing and raises nothing."""

        def guarded(*args: Any) -> None:
            self(hook, *args)

        return guarded
