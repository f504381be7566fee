# SPDX-License-Identifier: Apache-2.0
"""Allocations of a snapshot with their lifetimes: the history's begins and ends put together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.allocator.snapshot import Action, Blocks, History, Snapshot, State
from megatron.torch_trace.format.integer_arrays import Ints, ints

BEFORE = -1
"""As a begin: it was there when the history began."""
_ROUND = 512
"""Bytes to which the allocator rounds every request (c10/cuda/CUDACachingAllocator)."""


@dataclass(frozen=True, slots=True)
class Allocations:
    """Memory that was in use at some time of the history of one device.

    Args:
        size: bytes that it takes: the block's, where that is still there; else as the allocator
            rounds what was asked for, to 512.
        requested: bytes that were asked for.
        begin: entry of the history that allocated it, BEFORE if that is not in the history.
        end: entry that asked to free it; the length of the history if it was never freed.
        stack: who allocated it; 0 where that is unknown.
        freed_by: stack that freed it; 0 where it was not, or unknown.
        stream: raw handle of its stream.
        address: where it is.
    """

    size: Ints
    requested: Ints
    begin: Ints
    end: Ints
    stack: Ints
    freed_by: Ints
    stream: Ints
    address: Ints

    def __len__(self) -> int:
        return len(self.size)

    def alive(self, entry: int) -> Ints:
        """Rows that are in use right after an entry of the history."""
        return ints(np.flatnonzero((self.begin <= entry) & (self.end > entry)))


def of_device(history: History, device: int) -> History:
    """The part of a history that belongs to one device."""
    mine = history.device == device
    if mine.all():
        return history
    return History(
        *(
            ints(column[mine])
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
    rows = np.flatnonzero(
        (history.action == Action.ALLOC) | (history.action == Action.FREE_REQUESTED)
    )
    # By address and in order of time, what follows a begin is its end.
    order = rows[np.lexsort((rows, history.address[rows]))]
    begins = history.action[order] == Action.ALLOC
    same = np.zeros(len(order), dtype=bool)
    same[:-1] = history.address[order[:-1]] == history.address[order[1:]]
    ended = np.zeros(len(order), dtype=bool)
    ended[:-1] = begins[:-1] & same[:-1] & ~begins[1:]
    follower = np.append(order[1:], 0)
    began = order[begins]
    end = np.where(ended[begins], follower[begins], len(history))
    freed_by = np.where(ended[begins], history.stack[follower[begins]], 0)
    # A free whose begin is not in the history: before it, the address held something.
    preceded = np.zeros(len(order), dtype=bool)
    preceded[1:] = ended[:-1]
    orphans = order[~begins & ~preceded]
    # A block whose begin is not in the history.
    known = history.address[began[end == len(history)]]
    old = np.flatnonzero(~np.isin(blocks.address, known))
    size = _rounded(history.size)
    still = _block_sizes(blocks, history.address[began], end == len(history), size[began])
    count = len(old)
    return Allocations(
        size=ints(np.concatenate([still, size[orphans], blocks.size[old]])),
        requested=ints(
            np.concatenate([history.size[began], history.size[orphans], blocks.requested[old]])
        ),
        begin=ints(np.concatenate([began, np.full(len(orphans) + count, BEFORE)])),
        end=ints(np.concatenate([end, orphans, np.full(count, len(history))])),
        stack=ints(
            np.concatenate([history.stack[began], np.zeros(len(orphans)), blocks.stack[old]])
        ),
        freed_by=ints(np.concatenate([freed_by, history.stack[orphans], np.zeros(count)])),
        stream=ints(
            np.concatenate(
                [
                    history.stream[began],
                    history.stream[orphans],
                    snapshot.segments.stream[blocks.segment[old]],
                ]
            )
        ),
        address=ints(
            np.concatenate([history.address[began], history.address[orphans], blocks.address[old]])
        ),
    )


def _blocks_in_use(snapshot: Snapshot, device: int) -> Blocks:
    blocks = snapshot.blocks
    mine = snapshot.segments.device[blocks.segment] == device
    mine &= blocks.state == State.ALLOCATED
    return Blocks(
        *(
            ints(column[mine])
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


def _rounded(size: Ints) -> Ints:
    return ints(-(-size // _ROUND) * _ROUND)


def _block_sizes(blocks: Blocks, addresses: Ints, still_there: Ints, sizes: Ints) -> Ints:
    """Sizes of allocations; of those that are still there the size of their block."""
    if not len(blocks.address):
        return sizes
    order = np.argsort(blocks.address)
    found = np.minimum(np.searchsorted(blocks.address[order], addresses), len(order) - 1)
    row = order[found]
    here = still_there & (blocks.address[row] == addresses)
    return ints(np.where(here, blocks.size[row], sizes))
