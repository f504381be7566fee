# SPDX-License-Identifier: Apache-2.0
"""A snapshot of torch's caching allocator: segments, blocks and the history of one process.

Written by `torch.cuda.memory._dump_snapshot`, by Megatron's `--record-memory-history` and by
`--torch-profile-memory-snapshot`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from megatron.torch_trace.allocator.stack_table import StackTable
from megatron.torch_trace.format.integer_arrays import Column, Ints, distinct


class Action(IntEnum):
    """What an entry of the history is, in torch's words; OTHER is any that is not known here."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8
    OTHER = 9


class State(IntEnum):
    """Of a block: in use, waiting for streams that use it, or free."""

    ALLOCATED = 0
    PENDING_FREE = 1
    FREE = 2


@dataclass(frozen=True, slots=True)
class History:
    """What the allocator did, oldest first; all arrays have one entry for each action.

    Histories have millions of entries: numbers take as few bytes as they need.

    Args:
        device: index of the device.
        action: `Action`.
        address: of the block or segment; of an out-of-memory error the free bytes of the device.
        size: bytes.
        stream: raw handle of the CUDA stream.
        time: ns since 1970, as the process's clock had it; 0 before torch 2.2, which kept none.
        stack: number of the stack in `Snapshot.stacks`.
    """

    device: Column
    action: Column
    address: Column
    size: Column
    stream: Column
    time: Column
    stack: Column

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True)
class Segments:
    """What the allocator has from CUDA. All arrays have one entry for each segment.

    Args:
        device: index of the device.
        address: where it begins.
        size: bytes.
        stream: raw handle of the stream that it serves.
        pool: number of its pool; 0 is the default one, others are of CUDA graphs.
        expandable: 1 where it grows by mapping pages.
    """

    device: Ints
    address: Ints
    size: Ints
    stream: Ints
    pool: Ints
    expandable: Ints


@dataclass(frozen=True, slots=True)
class Blocks:
    """The pieces of all segments, by address. All arrays have one entry for each block.

    Args:
        segment: row of `Segments`.
        address: where it begins.
        size: bytes, as the allocator rounded them.
        requested: bytes that were asked for; the size where that is not recorded.
        state: `State`.
        stack: number of the stack in `Snapshot.stacks`.
    """

    segment: Ints
    address: Ints
    size: Ints
    requested: Ints
    state: Ints
    stack: Ints


@dataclass(frozen=True, slots=True)
class Annotation:
    """A named range of the program (record_function) while the history was kept, in ns."""

    name: str
    device: int
    start: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One process's memory.

    Args:
        path: the file.
        segments, blocks: at the moment of the snapshot.
        history: what led to it; a ring, so its begin may be missing.
        annotations: named ranges, by start; torch writes them from 2.8 on.
        stacks: the call stacks.
        settings: of the allocator, by torch's names.
        cut_short: the file ends before the snapshot does.
        odd: entries that are not what torch writes, left out.
        has_blocks: the segments and blocks are the allocator's own; False of a trace, where one
            segment stands for all.
    """

    path: Path
    segments: Segments
    blocks: Blocks
    history: History
    annotations: tuple[Annotation, ...]
    stacks: StackTable
    settings: dict[str, Any] = field(default_factory=dict)
    cut_short: bool = False
    odd: int = 0
    has_blocks: bool = True

    @property
    def devices(self) -> tuple[int, ...]:
        """Devices on which there is something."""
        both = (self.segments.device, self.history.device)
        return tuple(sorted({number for one in both for number in distinct(one).tolist()}))
