# SPDX-License-Identifier: Apache-2.0
"""The three ways in which a window ends: who stops its profiler, and who writes its trace."""

from __future__ import annotations

from enum import Enum


class Ending(Enum):
    """Who stops the profiler of a window and writes its trace.

    Another program compresses in all but `FORK`, where the forked process does.
    """

    THREAD = "a thread stops it and saves, and training goes on meanwhile"
    FORK = "training stops it, and a forked process saves and compresses"
    TRAINING = "training stops it and saves"

    @property
    def beside(self) -> bool:
        """Whether training goes on while the profiler stops."""
        return self is Ending.THREAD
