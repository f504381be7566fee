# SPDX-License-Identifier: Apache-2.0
"""Pieces of the text of a raw trace, and how many events are in them."""

from __future__ import annotations

from dataclasses import dataclass

LAUNCH_KERNEL = b"LaunchKernel"
_EVENT, _KERNEL = b'"ph":', b'"cat": "kernel"'


@dataclass(slots=True)
class Counts:
    """What is in some text.

    Args:
        events: slices, marks and arrows.
        kernels: GPU kernels.
        launches: calls that launched a kernel, by name.
    """

    events: int = 0
    kernels: int = 0
    launches: int = 0

    @classmethod
    def of(cls, text: bytes) -> Counts:
        """By the marks that each of them has."""
        return cls(*map(text.count, (_EVENT, _KERNEL, LAUNCH_KERNEL)))

    def add(self, other: Counts, times: int = 1) -> None:
        """Those of other text, which may count against these."""
        self.events += times * other.events
        self.kernels += times * other.kernels
        self.launches += times * other.launches


@dataclass(slots=True)
class Piece:
    """Text, and what is in it; None where nobody has looked.

    Text that has been looked at begins with an event and ends with one.
    """

    text: bytes | memoryview
    counts: Counts | None = None
