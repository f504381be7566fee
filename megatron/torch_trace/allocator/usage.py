# SPDX-License-Identifier: Apache-2.0
"""Bytes in use and bytes reserved over the history of a snapshot, and their peaks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.allocator.allocations import Allocations
from megatron.torch_trace.allocator.snapshot import Action, History, Snapshot
from megatron.torch_trace.format.integer_arrays import Ints, ints

_RESERVES = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_GIVES_BACK = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one device. The arrays have one entry more than the history: first the state before it.

    Args:
        in_use: bytes of allocations after each entry.
        reserved: bytes that the allocator has from CUDA after each entry.
        time: ns of each entry; the first one twice.
    """

    in_use: Ints
    reserved: Ints
    time: Ints

    @property
    def peak_entry(self) -> int:
        """The entry of the history after which most is in use; -1 is before the first."""
        return int(self.in_use.argmax()) - 1

    @property
    def peak_bytes(self) -> int:
        return int(self.in_use.max())

    @property
    def peak_time(self) -> int:
        """ns since 1970; 0 where the history has no times."""
        return int(self.time[self.peak_entry + 1])


def usage_of(snapshot: Snapshot, history: History, allocations: Allocations, device: int) -> Usage:
    """Usage over time: the state of the snapshot, from which the history is taken back.

    Args:
        snapshot: its segments say what is reserved at the end.
        history: of this device alone.
        allocations: of this device.
        device: index.
    """
    count = len(history)
    change = np.zeros(count + 2, dtype=np.int64)
    np.add.at(change, allocations.begin + 1, allocations.size)
    np.subtract.at(change, allocations.end + 1, allocations.size)
    segments = np.zeros(count, dtype=np.int64)
    segments[np.isin(history.action, _RESERVES)] = 1
    segments[np.isin(history.action, _GIVES_BACK)] = -1
    grown = np.cumsum(np.append(0, segments * history.size))
    at_end = int(snapshot.segments.size[snapshot.segments.device == device].sum())
    time = np.append(history.time[:1], history.time) if count else np.zeros(1, dtype=np.int64)
    return Usage(
        in_use=ints(np.cumsum(change)[: count + 1]),
        reserved=ints(at_end - grown[-1] + grown),
        time=ints(time),
    )
