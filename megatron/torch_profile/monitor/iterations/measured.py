# SPDX-License-Identifier: Apache-2.0
"""What a rank measures of one iteration: a few numbers, 49 bytes on their way to rank 0."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

PHASES = ("forward", "backward", "pipeline", "gradients", "parameters", "optimizer", "data")
"""Parts of an iteration; what is in none of them is `other`."""
OTHER = "other"
WAITING = "waiting"
PAUSE = "pause"
"""Evaluation and checkpoints, which belong to no iteration."""
_LAYOUT = struct.Struct("<IB11f")
_ITERATION = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Measured:
    """One iteration of one rank, in ms: what follows `total` adds up to it, but for `resident`.

    A phase holds only the rank's own time. What it waited for other ranks, in whichever phase, is
    in `waiting`: collectives, and transfers between pipeline stages.

    Args:
        iteration: global, from 1.
        disturbed: evaluation, a checkpoint or a window was in it.
        total: without evaluation and checkpoints.
        resident: MB of memory that the process held soon after the iteration; 0 where that is not
            known.
        in_parts: whether it was measured in its parts; else all of it is `other`.
    """

    iteration: int
    disturbed: bool
    total: float
    forward: float = 0.0
    backward: float = 0.0
    pipeline: float = 0.0
    gradients: float = 0.0
    parameters: float = 0.0
    optimizer: float = 0.0
    data: float = 0.0
    other: float = 0.0
    waiting: float = 0.0
    resident: float = 0.0
    in_parts: bool = True

    @property
    def own(self) -> float:
        """Time in which the rank did not wait for others."""
        return self.total - self.waiting

    def packed(self) -> bytes:
        """49 bytes."""
        flags = self.disturbed | (not self.in_parts) << 1
        return _LAYOUT.pack(self.iteration, flags, *(getattr(self, n) for n in _NUMBERS))

    def as_json(self) -> dict[str, Any]:
        """For a hang record."""
        numbers = {name: round(getattr(self, name), 3) for name in _NUMBERS}
        return {"iteration": self.iteration, "disturbed": self.disturbed} | numbers

    @classmethod
    def unpacked(cls, packed: bytes) -> Measured:
        """From its 49 bytes."""
        iteration, flags, *numbers = _LAYOUT.unpack(packed)
        row = cls(iteration, bool(flags & 1), *numbers)
        return row if not flags & 2 else replace(row, in_parts=False)


def as_text(rows: Iterable[bytes]) -> str:
    """Packed rows for the channel."""
    return base64.b64encode(b"".join(rows)).decode()


def parse(text: bytes, after: int = -1) -> list[Measured]:
    """From the channel.

    Args:
        text: rows in their order.
        after: rows up to this iteration are known already, and are not even unpacked.
    """
    data = base64.b64decode(text)
    at = len(data)
    while at and _ITERATION.unpack_from(data, at - _LAYOUT.size)[0] > after:
        at -= _LAYOUT.size
    return [
        Measured.unpacked(data[here : here + _LAYOUT.size])
        for here in range(at, len(data), _LAYOUT.size)
    ]


_NUMBERS = tuple(field.name for field in fields(Measured))[2:-1]
