# SPDX-License-Identifier: Apache-2.0
"""The part of `survey` that looks at one block."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from megatron.torch_trace.columns.block_times import block_times
from megatron.torch_trace.format.step_names import SIGN, marks_a_step
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.gpu_record.ledger import BlockRecord
from megatron.torch_trace.gpu_record.other_devices import ASCEND_MARK
from megatron.torch_trace.reader import EventBlock, SlimEvent
from megatron.torch_trace.rewrite.arrow_ends import flow_numbers
from megatron.torch_trace.rewrite.category_totals import Account
from megatron.torch_trace.rewrite.event_kinds import BlockKinds, KindTable
from megatron.torch_trace.rewrite.selection import Selection
from megatron.torch_trace.rewrite.tracks.block_slices import BlockSlices, keyed, slices_of
from megatron.torch_trace.tracks.impossible_times import BlockTimes


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
        tracks = keyed(block) if self.crossing else None
        kinds = BlockKinds(block.events, self.table, tracks)
        kinds.add_to(part.account, block.event_texts.sizes)
        events = block.events
        on_cpu = kinds.where("is_on_cpu")
        for index in np.flatnonzero(on_cpu & (ts != NO_TIME)).tolist():
            if SIGN in events[index].name:
                number = marks_a_step(events[index].name, events[index].cat)
                if number is not None:
                    part.steps.append((number, int(ts[index]), max(0, int(dur[index]))))
        self._arrows(part, events, kinds)
        calls, work = kinds.where("is_launch"), kinds.where("is_gpu")
        part.gpu_events = int(work.sum())
        if ("X", "") in kinds.keys and block.text:
            part.ascend = block.text.count(ASCEND_MARK)
        part.record = BlockRecord.of(events, (ts, dur), calls, work, calls | on_cpu)
        slices = np.flatnonzero(kinds.where("is_slice"))
        self._times(part, block, ts[slices], dur[slices], slices)
        if self.crossing:
            part.slices = slices_of(block, (ts, dur), tracks)
        return part

    def _arrows(self, part: SurveyPart, events: list[SlimEvent], kinds: BlockKinds) -> None:
        """Arrows: those of one kind together, which all have one name as a rule."""
        for code, kind in enumerate(kinds.kinds):
            if not kind.is_flow:
                continue
            phase = kinds.keys[code][0]
            mine = [events[index] for index in np.flatnonzero(kinds.code == code).tolist()]
            names = [event.name for event in mine]
            numbers = flow_numbers([event.id for event in mine]).tolist()
            for name, these in _by_name(names, numbers).items():
                both = part.flows.setdefault(f"{kind.name}\0{name}", ([], []))
                if phase != "t":
                    both[phase == "f"].extend(these)

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


def _by_name(names: list[str], numbers: list[int]) -> dict[str, list[int]]:
    if len(set(names)) <= 1:
        return dict.fromkeys(names[:1], numbers)
    found: dict[str, list[int]] = {}
    for name, number in zip(names, numbers, strict=True):
        found.setdefault(name, []).append(number)
    return found
