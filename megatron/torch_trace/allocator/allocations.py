# SPDX-License-Identifier: Apache-2.0
"""Allocations of a snapshot with their lifetimes: the history's begins and ends put together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.allocator.history.lifetimes import lifetimes_of
from megatron.torch_trace.allocator.snapshot import Blocks, History, Snapshot, State
from megatron.torch_trace.format.integer_arrays import Column, Ints, ints, narrow

BEFORE = -1
"""As a begin: it was there when the history began."""
_ROUND = 512
"""Bytes to which the allocator rounds every request (c10/cuda/CUDACachingAllocator)."""


@dataclass(frozen=True, slots=True)
class Allocations:
    """Memory that was in use at some time of the history of one device.

    First those that the history begins, then those that it only ends, then blocks of the snapshot
    that it does not tell of.

    Args:
        size: bytes that it takes: the block's, where that is still there; else as the allocator
            rounds what was asked for, to 512.
        begin: entry of the history that allocated it, BEFORE if that is not in the history.
        end: entry that asked to free it; the length of the history if it was never freed.
        stack: who allocated it; 0 where that is unknown.
        history: of the device.
        old: the blocks that the history does not tell of.
    """

    size: Column
    begin: Column
    end: Column
    stack: Column
    history: History
    old: Blocks

    def __len__(self) -> int:
        return len(self.size)

    @property
    def address(self) -> Ints:
        """Where each one is."""
        return ints(np.concatenate([self.history.address[self._entries], self.old.address]))

    @property
    def requested(self) -> Ints:
        """Bytes that were asked for."""
        return ints(np.concatenate([self.history.size[self._entries], self.old.requested]))

    @property
    def freed_by(self) -> Column:
        """Stacks that freed them; 0 where a block was not freed, or by whom is unknown."""
        end = self.end[: len(self) - len(self.old.address)]
        found = np.zeros(len(self), dtype=self.history.stack.dtype)
        freed = np.flatnonzero(end < len(self.history))
        found[freed] = self.history.stack[end[freed]]
        return found

    @property
    def _entries(self) -> Column:
        """The entries that tell of them: their begin, else their end."""
        told = len(self) - len(self.old.address)
        begin, end = self.begin[:told], self.end[:told]
        return np.where(begin == BEFORE, end, begin)

    def alive(self, entry: int) -> Ints:
        """Rows that are in use right after an entry of the history."""
        return ints(np.flatnonzero((self.begin <= entry) & (self.end > entry)))


def no_allocations() -> Allocations:
    """Those of an empty history."""
    nothing = np.zeros(0, dtype=np.int64)
    history, blocks = History(*([nothing] * 7)), Blocks(*([nothing] * 6))
    return Allocations(nothing, nothing, nothing, nothing, history, blocks)


def of_device(history: History, device: int) -> History:
    """The part of a history that belongs to one device."""
    mine = history.device == device
    if mine.all():
        return history
    first, count = int(mine.argmax()), int(np.count_nonzero(mine))
    # A snapshot has the entries of one device after those of another.
    whole = bool(mine[first : first + count].all())
    rows: slice | npt.NDArray[np.bool_] = slice(first, first + count) if whole else mine
    return History(
        *(
            column[rows]
            for column in (
                history.device,
                history.action,
                history.address,
                history.size,
                history.stream,
                history.time,
                history.stack,
            )
        )
    )


def allocations_of(snapshot: Snapshot, history: History, device: int) -> Allocations:
    """Put begins and ends together.

    Args:
        snapshot: the blocks that are still there come from it.
        history: of this device alone.
        device: index.
    """
    blocks = _blocks_in_use(snapshot, device)
    found, count = lifetimes_of(history), len(history)
    began, orphans = found.begin, found.orphans
    # A block whose begin is not in the history.
    unfreed = np.flatnonzero(found.end == count)
    known = history.address[began[unfreed]]
    old = _rows(blocks, np.flatnonzero(~np.isin(blocks.address, known)))
    size = _rounded(history.size[began])
    size[unfreed] = _block_sizes(blocks, ints(known), size[unfreed])
    before = np.full(len(orphans) + len(old.address), BEFORE, dtype=began.dtype)
    # Numbers of blocks' stacks, and of those that owners add, may need more than the history's.
    unknown = np.zeros(len(orphans), dtype=np.int32)
    after = np.full(len(old.address), count, dtype=began.dtype)
    return Allocations(
        size=narrow(ints(np.concatenate([size, _rounded(history.size[orphans]), old.size]))),
        begin=np.concatenate([began, before]),
        end=np.concatenate([found.end, orphans, after]),
        stack=np.concatenate([history.stack[began], unknown, old.stack.astype(np.int32)]),
        history=history,
        old=old,
    )


def _blocks_in_use(snapshot: Snapshot, device: int) -> Blocks:
    blocks = snapshot.blocks
    mine = snapshot.segments.device[blocks.segment] == device
    return _rows(blocks, np.flatnonzero(mine & (blocks.state == State.ALLOCATED)))


def _rows(blocks: Blocks, rows: Ints) -> Blocks:
    return Blocks(
        *(
            ints(column[rows])
            for column in (
                blocks.segment,
                blocks.address,
                blocks.size,
                blocks.requested,
                blocks.state,
                blocks.stack,
            )
        )
    )


def _rounded(size: Column) -> Ints:
    return ints(-(-size.astype(np.int64) // _ROUND) * _ROUND)


def _block_sizes(blocks: Blocks, addresses: Ints, sizes: Ints) -> Ints:
    """Sizes of allocations that were not freed: those of their blocks, where there are such."""
    if not len(blocks.address):
        return sizes
    order = np.argsort(blocks.address)
    found = np.minimum(np.searchsorted(blocks.address[order], addresses), len(order) - 1)
    row = order[found]
    return ints(np.where(blocks.address[row] == addresses, blocks.size[row], sizes))
