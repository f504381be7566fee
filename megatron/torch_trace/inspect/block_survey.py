# SPDX-License-Identifier: Apache-2.0
"""The part of `survey` that looks at one block."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from megatron.torch_trace.columns.block_times import block_times
from megatron.torch_trace.format.categories import category
from megatron.torch_trace.format.step_names import MENTION, marks_a_step
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.gpu_record.ledger import BlockRecord
from megatron.torch_trace.gpu_record.other_devices import ASCEND_MARK
from megatron.torch_trace.reader import EventBlock, SlimEvent
from megatron.torch_trace.rewrite.arrow_ends import flow_number
from megatron.torch_trace.rewrite.category_totals import Account
from megatron.torch_trace.rewrite.event_kinds import BlockKinds, KindTable
from megatron.torch_trace.rewrite.selection import Selection
from megatron.torch_trace.rewrite.tracks.block_slices import BlockSlices, slices_of
from megatron.torch_trace.tracks.impossible_times import BlockTimes

_MENTION = MENTION.encode()


@dataclass(slots=True)
class SurveyPart:
    """What one block contributes."""

    account: Account = field(default_factory=dict)
    times: BlockTimes | None = None
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    record: BlockRecord = field(default_factory=BlockRecord)
    gpu_events: int = 0
    ascend: int = 0
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
        if block.text is None or _MENTION in block.text:
            for index, event in enumerate(block.events):
                number = marks_a_step(event.name, event.cat) if event.ph == "X" else None
                if number is not None and ts[index] != NO_TIME:
                    part.steps.append((number, int(ts[index]), max(0, int(dur[index]))))
        self._arrows(part, block.events, kinds)
        calls, work = kinds.where("is_launch"), kinds.where("is_gpu")
        part.gpu_events = int(work.sum())
        if "X\0" in kinds.keys and block.text:
            part.ascend = block.text.count(ASCEND_MARK)
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
        kinds = {
            "without a start": ~present,
            "without a duration": present & (dur == NO_TIME),
            "with a negative duration": present & (dur < 0) & (dur != NO_TIME),
        }
        for kind, odd in kinds.items():
            count = int(odd.sum())
            if count:
                first = int(index[int(np.argmax(odd))])
                part.odd[kind] = (count, block.event_offset(first))
        part.times = BlockTimes.of(block.offset, ts[present], dur[present], index[present])
