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
from megatron.torch_trace.reader.texts import Texts
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
            arrows: their indices.
            settled: of each event, whether it stays.
            moved: indices of those that stay on another track.
        """
        clear = np.append(settled & self.is_slice, True)
        clear[list(moved)] = False
        numbered = np.where(self.is_slice, np.arange(len(self.is_slice)), -1)
        unclear: NDArray[np.bool_] = ~clear[np.maximum.accumulate(numbered)[arrows]]
        return unclear

    def of(self, arrow: int) -> int | None:
        """The slice before an end, if track and time agree."""
        for before in range(arrow - 1, max(-1, arrow - FARTHEST - 1), -1):
            if self.is_slice[before]:
                same = where_and_when(self._event(before)) == where_and_when(self._event(arrow))
                return before if same else None
        return None

    def _event(self, index: int) -> Any:
        event = self.block.events[index]
        return event if hasattr(event, "ts") else track_event(self.block.event_texts, index)


def arrows_beside(texts: Texts, moved: Mapping[int, Track]) -> dict[int, Track]:
    """Ends of arrows that go with slices which leave their track: index -> the new track.

    As `Anchors.of` finds them, but from the slice on: only what stands beside it is decoded.

    Args:
        texts: of a block's events.
        moved: index of a slice, or of another event -> its new track.
    """
    found: dict[int, Track] = {}
    for index, track in moved.items():
        anchor = track_event(texts, index)
        if anchor.ph != "X":
            continue
        for behind in range(index + 1, min(index + 1 + FARTHEST, len(texts))):
            event = track_event(texts, behind)
            if event.ph == "X":
                break
            if event.ph in FLOW_PHASES and where_and_when(event) == where_and_when(anchor):
                found[behind] = track
    return found


def track_event(texts: Texts, index: int) -> TrackEvent:
    """One event, decoded."""
    return decode_loosely(b"{%b}" % texts[index], TrackEvent)


def where_and_when(event: Any) -> tuple[object, object, object]:
    """What an end of an arrow has in common with its slice."""
    return event.pid, event.tid, event.ts
