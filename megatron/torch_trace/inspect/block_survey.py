# SPDX-License-Identifier: Apache-2.0
"""The part of `survey` that looks at one block."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from megatron.torch_trace.columns.block_times import block_times
from megatron.torch_trace.format.categories import category
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.gpu_record.ledger import BlockRecord
from megatron.torch_trace.reader import EventBlock, SlimEvent
from megatron.torch_trace.rewrite.category_totals import Account
from megatron.torch_trace.rewrite.event_kinds import BlockKinds, KindTable
from megatron.torch_trace.rewrite.selection import Selection
from megatron.torch_trace.rewrite.slim.pending_events import flow_number
from megatron.torch_trace.rewrite.slim.slim import STEP_NAME
from megatron.torch_trace.rewrite.tracks.block_slices import BlockSlices, slices_of

_FAR_NS = 86_400 * 1_000_000_000
_LONG_NS = 86_400 * 1_000_000_000


@dataclass(slots=True)
class SurveyPart:
    """What one block contributes."""

    account: Account = field(default_factory=dict)
    low: int = 0
    high: int = 0
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    record: BlockRecord = field(default_factory=BlockRecord)
    gpu_events: int = 0
    flows: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    odd: dict[str, tuple[int, int]] = field(default_factory=dict)
    slices: BlockSlices | None = None


class BlockLook:
    """Look at any block; has no state between blocks.

    Args:
        crossing: also note where its slices are.
    """

    def __init__(self, crossing: bool) -> None:
        self.crossing = crossing
        self.table = KindTable(Selection())

    def __call__(self, block: EventBlock[SlimEvent]) -> SurveyPart:
        part = SurveyPart()
        ts, dur = block_times(block)
        kinds = BlockKinds(block.events, self.table)
        kinds.add_to(part.account, block.places.sizes)
        for index in np.flatnonzero(kinds.where("is_annotation")).tolist():
            match = STEP_NAME.fullmatch(block.events[index].name)
            if match and ts[index] != NO_TIME and kinds.of(index).name == "user_annotation":
                mark = (int(match[1]), int(ts[index]), max(0, int(dur[index])))
                part.steps.append(mark)
        self._arrows(part, block.events, kinds)
        calls, work = kinds.where("is_launch"), kinds.where("is_gpu")
        part.gpu_events = int(work.sum())
        part.record = BlockRecord.of(
            block.events, (ts, dur), calls, work, calls | kinds.where("is_on_cpu")
        )
        slices = np.flatnonzero(kinds.where("is_slice"))
        self._times(part, block, ts[slices], dur[slices], slices)
        if self.crossing:
            part.slices = slices_of(block, (ts, dur))
        return part

    def _arrows(self, part: SurveyPart, events: list[SlimEvent], kinds: BlockKinds) -> None:
        """Arrows."""
        ends: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
        for index in np.flatnonzero(kinds.where("is_flow")).tolist():
            event = events[index]
            both = ends.get((event.cat, event.name))
            if both is None:
                key = f"{category(event.cat)}\0{event.name}"
                both = ends[event.cat, event.name] = part.flows.setdefault(key, ([], []))
            if event.ph != "t":
                both[event.ph == "f"].append(flow_number(event.id))

    def _times(
        self,
        part: SurveyPart,
        block: EventBlock[SlimEvent],
        ts: np.ndarray,
        dur: np.ndarray,
        index: np.ndarray,
    ) -> None:
        present = ts != NO_TIME
        middle = int(np.median(ts[present])) if present.any() else 0
        near = present & (np.abs(ts - middle) < _FAR_NS)
        sane = near & (dur != NO_TIME) & (dur < _LONG_NS)
        kinds = {
            "without a start": ~present,
            "without a duration": present & (dur == NO_TIME),
            "with a negative duration": present & (dur < 0) & (dur != NO_TIME),
            "longer than a day": present & (dur >= _LONG_NS),
            "more than a day away from the rest": present & ~near,
        }
        for kind, odd in kinds.items():
            count = int(odd.sum())
            if count:
                first = int(index[int(np.argmax(odd))])
                part.odd[kind] = (count, block.event_offset(first))
        if sane.any():
            part.low = int(ts[sane].min())
            part.high = int((ts + np.maximum(dur, 0))[sane].max())
