# SPDX-License-Identifier: Apache-2.0
"""What runs in the middle of training for profiling's sake must not end it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from megatron.torch_profile.log import logger

T = TypeVar("T")


class Guard:
    """Calls what may fail: the first failure is said, and then nothing is called any more.

    Args:
        what: what there will be no more of, for the log.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._failed = False

    def __call__(self, do: Callable[..., T], *args: Any) -> T | None:
        """What `do` returns; None where it failed, now or before."""
        if self._failed:
            return None
        try:
            return do(*args)
        except Exception as error:
            self._failed = True
            logger.warning(
                "no more %s, training goes on: %s: %s", self._what, type(error).__name__, error
            )
            return None

    def around(self, hook: Callable[..., None]) -> Callable[..., None]:
        """A hook that returns nothing and raises nothing."""

        def guarded(*args: Any) -> None:
            self(hook, *args)

        return guarded
