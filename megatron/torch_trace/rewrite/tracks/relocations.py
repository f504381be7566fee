# SPDX-License-Identifier: Apache-2.0
"""Which events of a trace go to another track, in a few bytes each: they may be most of a file."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.format.integer_arrays import Ints
from megatron.torch_trace.format.tracks import Track as Track


class Moves:
    """Address of an event (offset of its block, index in it) -> track. Later entries count."""

    def __init__(self) -> None:
        self._of: dict[int, list[tuple[Track, NDArray[np.int32]]]] = {}

    def add(self, target: Track, blocks: Ints, indices: Ints) -> None:
        """Add events that go to `target`."""
        order = np.argsort(blocks, kind="stable")
        found, firsts = np.unique(blocks[order], return_index=True)
        parts = np.split(indices[order], firsts[1:])
        for block, part in zip(found.tolist(), parts, strict=True):
            self._of.setdefault(block, []).append((target, part.astype(np.int32)))

    def count(self, block: int) -> int:
        """How many events leave their tracks in a block."""
        return sum(len(indices) for _, indices in self._of.get(block, ()))

    def of(self, block: int) -> dict[int, Track]:
        """Index in the block -> track."""
        found: dict[int, Track] = {}
        for target, indices in self._of.get(block, ()):
            found |= dict.fromkeys(indices.tolist(), target)
        return found
