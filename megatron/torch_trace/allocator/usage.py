# SPDX-License-Identifier: Apache-2.0
"""Bytes in use and bytes reserved over the history of a snapshot, and their peaks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from megatron.torch_trace.allocator.allocations import Allocations, no_allocations
from megatron.torch_trace.allocator.snapshot import Action, History, Snapshot
from megatron.torch_trace.format.integer_arrays import Ints, ints

_PIECE = 1 << 21
"""Entries that are looked at at once."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one device. The arrays have one entry more than the history: first the state before it.

    They are made when they are asked for: they take more memory than all that is kept.

    Args:
        peak_entry: the entry of the history after which most is in use; -1 is before the first.
        peak_time: ns since 1970 of this moment; 0 where the history has no times.
        peak_bytes: most bytes in use.
        peak_reserved: most bytes that the allocator had from CUDA.
        allocations: of the device.
        reserved_at_end: bytes that it has from CUDA after the last entry.
    """

    peak_entry: int
    peak_time: int
    peak_bytes: int
    peak_reserved: int
    allocations: Allocations
    reserved_at_end: int

    @property
    def in_use(self) -> Ints:
        """Bytes of allocations after each entry."""
        return ints(np.concatenate([one for _, one in _in_use(self.allocations)]))

    @property
    def reserved(self) -> Ints:
        """Bytes that the allocator has from CUDA after each entry."""
        history = self.allocations.history
        rows, change = _of_segments(history)
        grown = np.zeros(len(history) + 1, dtype=np.int64)
        grown[rows + 1] = change
        np.cumsum(grown, out=grown)
        grown += self.reserved_at_end - grown[-1]
        return grown

    @property
    def time(self) -> Ints:
        """ns of each entry; the first one twice."""
        time = self.allocations.history.time
        return ints(np.append(time[:1], time) if len(time) else np.zeros(1, dtype=np.int64))

    def peak_alone(self) -> Usage:
        """The same of the peak, without what is as long as the history: the arrays are empty."""
        return replace(self, allocations=no_allocations())


def usage_of(snapshot: Snapshot, history: History, allocations: Allocations, device: int) -> Usage:
    """Usage over time: the state of the snapshot, from which the history is taken back.

    Args:
        snapshot: its segments say what is reserved at the end.
        history: of this device alone.
        allocations: of this device.
        device: index.
    """
    peak_entry, peak_bytes = -1, None
    for start, in_use in _in_use(allocations):
        fullest = int(in_use.argmax())
        if peak_bytes is None or in_use[fullest] > peak_bytes:
            peak_entry, peak_bytes = start + fullest - 1, int(in_use[fullest])
    at_end = int(snapshot.segments.size[snapshot.segments.device == device].sum())
    change = np.cumsum(_of_segments(history)[1])
    before = at_end - int(change[-1]) if len(change) else at_end
    most = before + max(0, int(change.max(initial=0)))
    peak_time = int(history.time[max(0, peak_entry)]) if len(history) else 0
    return Usage(peak_entry, peak_time, peak_bytes or 0, most, allocations, at_end)


def over_time(allocations: Allocations, rows: Ints) -> Ints:
    """Bytes of some of the allocations, a position or a truth each, after each entry.

    The first number is of the moment before the first entry.
    """
    begin, end, size = (
        column[rows] for column in (allocations.begin, allocations.end, allocations.size)
    )
    change = np.zeros(len(allocations.history) + 2, dtype=np.int64)
    np.add.at(change, begin + 1, size)
    np.subtract.at(change, end + 1, size)
    np.cumsum(change, out=change)
    return change[:-1]


def _in_use(allocations: Allocations) -> Iterator[tuple[int, Ints]]:
    """Bytes in use, a piece of the history at a time, with the position of the first one."""
    positions, bytes_now = len(allocations.history) + 1, 0
    begin, end = allocations.begin, allocations.end
    for start in range(0, positions, _PIECE):
        count = min(_PIECE, positions - start)
        change = np.zeros(count, dtype=np.int64)
        change[0] = bytes_now
        for entries, add in ((begin, np.add), (end, np.subtract)):
            rows = np.flatnonzero((entries >= start - 1) & (entries < start - 1 + count))
            add.at(change, entries[rows] + 1 - start, allocations.size[rows])
        np.cumsum(change, out=change)
        bytes_now = int(change[-1])
        yield start, change


def _of_segments(history: History) -> tuple[Ints, Ints]:
    """Entries that changed what is reserved, and by how many bytes."""
    takes = (history.action == Action.SEGMENT_ALLOC) | (history.action == Action.SEGMENT_MAP)
    gives = (history.action == Action.SEGMENT_FREE) | (history.action == Action.SEGMENT_UNMAP)
    rows = np.flatnonzero(takes | gives)
    return ints(rows), ints(np.where(takes[rows], 1, -1) * history.size[rows])
