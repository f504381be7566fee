# SPDX-License-Identifier: Apache-2.0
"""Memory that the allocator holds and nobody uses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.allocator.snapshot import Snapshot, State


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Free memory of one device's segments, at the snapshot.

    Args:
        reserved: bytes that the allocator has from CUDA.
        in_use: bytes of blocks in use, those included that wait for a stream.
        returnable: bytes of segments that are free as a whole: `torch.cuda.empty_cache()` returns
            them.
        scattered: free bytes beside blocks in use, which cannot be returned.
        largest_free: bytes of the largest free block: no larger request fits without CUDA.
        segments: how many there are.
        other_pools: bytes of segments outside of the default pool (CUDA graphs, user pools).
    """

    reserved: int
    in_use: int
    returnable: int
    scattered: int
    largest_free: int
    segments: int
    other_pools: int

    @property
    def scattered_share(self) -> float:
        """Of what is reserved."""
        return self.scattered / self.reserved if self.reserved else 0.0


def fragmentation_of(snapshot: Snapshot, device: int) -> Fragmentation:
    """Of one device."""
    segments, blocks = snapshot.segments, snapshot.blocks
    mine = segments.device == device
    free = blocks.state == State.FREE
    count = len(segments.size)
    used = np.bincount(blocks.segment[~free], weights=blocks.size[~free], minlength=count).astype(
        np.int64
    )
    unused = mine & (used == 0)
    of_mine = free & mine[blocks.segment]
    beside = of_mine & ~unused[blocks.segment]
    return Fragmentation(
        reserved=int(segments.size[mine].sum()),
        in_use=int(used[mine].sum()),
        returnable=int(segments.size[unused].sum()),
        scattered=int(blocks.size[beside].sum()),
        largest_free=int(blocks.size[of_mine].max(initial=0)),
        segments=int(mine.sum()),
        other_pools=int(segments.size[mine & (segments.pool != 0)].sum()),
    )
