# SPDX-License-Identifier: Apache-2.0
"""The allocator's segments with their blocks at the snapshot, laid out in rows of equal length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.allocator.device_memory import DeviceMemory
from megatron.torch_trace.allocator.purpose.categories import CATEGORIES, Category
from megatron.torch_trace.allocator.snapshot import State
from megatron.torch_trace.format.integer_arrays import Ints, ints

_ROWS = 40
_PIECES = 500
"""In a row: what is smaller is drawn with its neighbours."""
_MOST_SEGMENTS = 400


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a row.

    Args:
        row: from 0.
        start, size: bytes from the row's begin.
        category: of what is in use there; None of free memory.
        waits: it is given back, and waits for a stream.
        blocks: how many there are.
        segment: size of its segment, in bytes.
        begins: a segment begins here.
    """

    row: int
    start: int
    size: int
    category: Category | None
    waits: bool
    blocks: int
    segment: int
    begins: bool


@dataclass(frozen=True, slots=True)
class SegmentMap:
    """All segments of a device.

    Args:
        row_bytes: how much one row is.
        rows: how many there are.
        pieces: by row and start.
        left_out: segments that are not drawn, the smallest ones.
        left_out_bytes: their size.
    """

    row_bytes: int
    rows: int
    pieces: tuple[Piece, ...]
    left_out: int
    left_out_bytes: int


def segment_map(memory: DeviceMemory) -> SegmentMap | None:
    """The map of a device; None of a trace, which does not tell segments apart."""
    snapshot = memory.snapshot
    segments = snapshot.segments
    mine = np.flatnonzero(segments.device == memory.device)
    if not snapshot.has_blocks or not len(mine):
        return None
    order = mine[np.lexsort((segments.address[mine], -segments.size[mine]))]
    drawn, left = order[:_MOST_SEGMENTS], order[_MOST_SEGMENTS:]
    total = int(segments.size[drawn].sum())
    row_bytes = max(1 << 20, 1 << max(0, (total // _ROWS) - 1).bit_length())
    pieces = tuple(_pieces(memory, drawn, row_bytes))
    return SegmentMap(
        row_bytes,
        -(-total // row_bytes),
        pieces,
        len(left),
        int(segments.size[left].sum()),
    )


def _pieces(memory: DeviceMemory, drawn: Ints, row_bytes: int) -> Iterator[Piece]:
    blocks, segments = memory.snapshot.blocks, memory.snapshot.segments
    categories = _categories_of_blocks(memory)
    by_segment = np.argsort(blocks.segment, kind="stable")
    firsts = np.searchsorted(blocks.segment[by_segment], drawn)
    ends = np.searchsorted(blocks.segment[by_segment], drawn, side="right")
    least = max(1, row_bytes // _PIECES)
    at = 0
    for segment, first, end in zip(drawn.tolist(), firsts.tolist(), ends.tolist(), strict=True):
        size = int(segments.size[segment])
        rows = by_segment[first:end]
        runs = _runs(
            categories[rows].tolist(),
            (blocks.state[rows] == State.PENDING_FREE).tolist(),
            blocks.size[rows].tolist(),
            least,
        )
        start = at
        for kind, waits, length, count in runs:
            yield from _in_rows(start, length, row_bytes, kind, waits, count, size, start == at)
            start += length
        at += size


_Run = tuple[int, bool, int, int]
"""Category or -1, whether it waits, bytes, blocks."""


def _runs(kinds: list[int], waits: list[bool], sizes: list[int], least: int) -> list[_Run]:
    """Neighbours of one kind as one; what is too small to be seen goes with the one before it."""
    found: list[list[int | bool]] = []
    for kind, waiting, size in zip(kinds, waits, sizes, strict=True):
        same = found and found[-1][0] == kind and found[-1][1] == waiting
        if found and (same or (size < least and int(found[-1][2]) < least)):
            if not same and size > int(found[-1][4]):
                found[-1][0], found[-1][1], found[-1][4] = kind, waiting, size
            found[-1][2] = int(found[-1][2]) + size
            found[-1][3] = int(found[-1][3]) + 1
        else:
            found.append([kind, waiting, size, 1, size])
    return [(int(one[0]), bool(one[1]), int(one[2]), int(one[3])) for one in found]


def _in_rows(
    start: int,
    size: int,
    row_bytes: int,
    kind: int,
    waits: bool,
    blocks: int,
    segment: int,
    begins: bool,
) -> Iterator[Piece]:
    category = CATEGORIES[kind] if kind >= 0 else None
    while size > 0:
        row, offset = divmod(start, row_bytes)
        here = min(size, row_bytes - offset)
        yield Piece(row, offset, here, category, waits, blocks, segment, begins)
        start, size, begins = start + here, size - here, False


def _categories_of_blocks(memory: DeviceMemory) -> Ints:
    """Of each block the category of what is in use in it; -1 of free ones."""
    blocks, allocations = memory.snapshot.blocks, memory.allocations
    rows = np.flatnonzero(allocations.end >= len(memory.history))
    order = rows[np.argsort(allocations.address[rows], kind="stable")]
    unknown = CATEGORIES.index(Category.UNKNOWN)
    found = np.full(len(blocks.address), unknown, dtype=np.int64)
    if len(order):
        addresses = allocations.address[order]
        index = np.minimum(np.searchsorted(addresses, blocks.address), len(order) - 1)
        known = addresses[index] == blocks.address
        found = np.where(known, memory.categories[order[index]], unknown)
    return ints(np.where(blocks.state == State.FREE, -1, found))
