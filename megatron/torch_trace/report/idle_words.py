# SPDX-License-Identifier: Apache-2.0
"""What the causes of idle time are called: in a sentence, in a column, on a terminal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IdleWords:
    """One cause.

    Args:
        cause: its name in the analysis; with `_ns` the field of `IdleCauses`.
        sentence: after a share: `16 % waiting for the data loader`.
        title: heading of a column; brief: on a terminal.
    """

    cause: str
    sentence: str
    title: str
    brief: str

    @property
    def colour(self) -> str:
        """The class of its colour."""
        return f"cause_{self.cause}"


IDLE_CAUSES = (
    IdleWords("cpu", "waiting for the CPU to launch work", "not launched yet", "not launched"),
    IdleWords("data", "waiting for the data loader", "data loader", "data loader"),
    IdleWords("sync", "after a synchronisation", "synchronisation", "sync"),
    IdleWords("gpu", "waiting for launched work to start", "launched, not started", "not started"),
    IdleWords("unknown", "for unknown reasons", "unknown", "unknown"),
)
