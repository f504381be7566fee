# SPDX-License-Identifier: Apache-2.0
"""All that a page draws of one rank."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_trace.allocator.device_memory import DeviceMemory
from megatron.torch_trace.allocator.pictures.curves import Curves, curves_of
from megatron.torch_trace.allocator.pictures.segment_map import SegmentMap, segment_map


@dataclass(frozen=True, slots=True)
class MemoryPicture:
    """Of one device.

    Args:
        device: index.
        curves: over time.
        segments: at the snapshot; None of a trace.
    """

    device: int
    curves: Curves
    segments: SegmentMap | None


def picture_of(memory: DeviceMemory) -> MemoryPicture:
    """Draw one device, so that the rest of it can be let go."""
    return MemoryPicture(memory.device, curves_of(memory), segment_map(memory))
