# SPDX-License-Identifier: Apache-2.0
"""What a rank measures of one iteration: 13 to 118 bytes on their way to rank 0."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from megatron.torch_profile.monitor.iterations.host_side import HostSide
from megatron.torch_profile.monitor.iterations.parts import PARTS, WAITING

_HEAD = struct.Struct("<IB2f")
"""Iteration, flags, total, resident."""
_DISTURBED, _NOT_IN_PARTS, _WITH_HOST = 1, 2, 4
_OWN = struct.Struct(f"<{len(PARTS) + 1}f")
_HOST = struct.Struct(f"<{2 * len(PARTS) + 1}fB")


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
        host: what the thread did in it, where its parts are measured on the GPU.
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
    host: HostSide | None = None

    @property
    def own(self) -> float:
        """Time in which the rank did not wait for others."""
        return self.total - self.waiting

    def packed(self) -> bytes:
        """13 bytes, 49 where it was measured in its parts, 118 where on a GPU."""
        host = self.host if self.in_parts else None
        flags = _DISTURBED * self.disturbed | _NOT_IN_PARTS * (not self.in_parts)
        flags |= _WITH_HOST * (host is not None)
        text = _HEAD.pack(self.iteration, flags, self.total, self.resident)
        if self.in_parts:
            text += _OWN.pack(*(getattr(self, part) for part in (*PARTS, WAITING)))
        if host is not None:
            times = (*(host.thread[part] for part in PARTS), *(host.covered[p] for p in PARTS))
            text += _HOST.pack(*times, host.lead, PARTS.index(host.lead_part))
        return text

    def as_json(self) -> dict[str, Any]:
        """For a hang record."""
        numbers = {name: round(getattr(self, name), 3) for name in _NUMBERS}
        return {"iteration": self.iteration, "disturbed": self.disturbed} | numbers

    @classmethod
    def unpacked(cls, packed: bytes, at: int = 0) -> Measured:
        """From its bytes.

        Args:
            packed: with others before and behind.
            at: where its own begin.
        """
        iteration, flags, total, resident = _HEAD.unpack_from(packed, at)
        row = cls(iteration, bool(flags & _DISTURBED), total, resident=resident)
        if flags & _NOT_IN_PARTS:
            return replace(row, other=total, in_parts=False)
        own = _OWN.unpack_from(packed, at + _HEAD.size)
        host = None
        if flags & _WITH_HOST:
            *times, lead, part = _HOST.unpack_from(packed, at + _HEAD.size + _OWN.size)
            thread, covered = (
                dict(zip(PARTS, t, strict=True)) for t in (times[: len(PARTS)], times[len(PARTS) :])
            )
            host = HostSide(thread, covered, lead, PARTS[part])
        return replace(row, host=host, **dict(zip((*PARTS, WAITING), own, strict=True)))


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
    at, found = 0, []
    while at < len(data):
        iteration, flags, *_ = _HEAD.unpack_from(data, at)
        if iteration > after:
            found.append(Measured.unpacked(data, at))
        at += _HEAD.size
        at += 0 if flags & _NOT_IN_PARTS else _OWN.size
        at += _HOST.size if flags & _WITH_HOST else 0
    return found


_NUMBERS = ("total", *PARTS, WAITING, "resident")
