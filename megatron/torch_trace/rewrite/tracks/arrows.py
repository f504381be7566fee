# SPDX-License-Identifier: Apache-2.0
"""The slice that an end of an arrow belongs to: Kineto writes it right before the arrow."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.format.categories import FLOW_PHASES
from megatron.torch_trace.reader import EventBlock
from megatron.torch_trace.reader.event import TrackEvent, decode_loosely
from megatron.torch_trace.rewrite.tracks.relocations import Track

FARTHEST = 8
"""So many events may stand between a slice and its arrow's end, others of other tracks."""


class Anchors:
    """Slices of one block by the arrows that are attached to them.

    Args:
        block: of any kind of event.
        is_slice: of each event.
    """

    def __init__(self, block: EventBlock[Any], is_slice: NDArray[np.bool_]) -> None:
        self.block, self.is_slice = block, is_slice

    def unclear(
        self, arrows: NDArray[np.intp], settled: NDArray[np.bool_], moved: Collection[int]
    ) -> NDArray[np.bool_]:
        """Which ends must be looked at.

        If the slice before an end stays as it is, so does the end, whether it belongs to it or to
        none. That is so for almost all, and there are many.

        Args:
            arrows: their places.
            settled: of each event, whether it stays.
            moved: places of those that stay on another track.
        """
        clear = np.append(settled & self.is_slice, True)
        clear[list(moved)] = False
        numbered = np.where(self.is_slice, np.arange(len(self.is_slice)), -1)
        unclear: NDArray[np.bool_] = ~clear[np.maximum.accumulate(numbered)[arrows]]
        return unclear

    def of(self, arrow: int) -> int | None:
        """The slice before an end, if place and time agree."""
        for before in range(arrow - 1, max(-1, arrow - FARTHEST - 1), -1):
            if self.is_slice[before]:
                return before if self._place(before) == self._place(arrow) else None
        return None

    def _place(self, index: int) -> tuple[object, object, object]:
        event: Any = self.block.events[index]
        if not hasattr(event, "ts"):
            event = decode_loosely(b"{%b}" % self.block.places[index], TrackEvent)
        return event.pid, event.tid, event.ts


def arrows_of_moved(block: EventBlock[Any], moved: Mapping[int, Track]) -> dict[int, Track]:
    """Arrows that go with slices which leave their track: index -> the slice's new track."""
    if not moved:
        return {}
    phases = [event.ph for event in block.events]
    anchors = Anchors(block, np.array([phase == "X" for phase in phases], dtype=bool))
    arrows = np.flatnonzero([phase in FLOW_PHASES for phase in phases])
    unclear = arrows[anchors.unclear(arrows, anchors.is_slice, moved)]
    found = ((index, anchors.of(index)) for index in unclear.tolist())
    return {
        index: moved[anchor] for index, anchor in found if anchor is not None and anchor in moved
    }
