# SPDX-License-Identifier: Apache-2.0
"""The part of `survey` that looks at one block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.accounts import Account
from megatron.torch_trace.reader import EventBlock, SlimEvent
from megatron.torch_trace.slices import BlockSlices, slices_of
from megatron.torch_trace.slim import STEP_NAME
from megatron.torch_trace.spool import flow_number
from megatron.torch_trace.times import NO_TIME, block_times
from megatron.torch_trace.vocabulary import FLOW_PHASES, GPU_WORK, LAUNCHES, category, is_launch

_FAR_NS = 86_400 * 1_000_000_000
_LONG_NS = 86_400 * 1_000_000_000


@dataclass(slots=True)
class SurveyPart:
    """What one block contributes."""

    account: Account
    low: int
    high: int
    middle: int
    steps: dict[int, tuple[int, int]]
    launches: list[int]
    calls: list[int]
    gpu: list[int]
    devices: set[int]
    flows: dict[str, tuple[list[int], list[int]]]
    odd: dict[str, tuple[int, int]]
    slices: BlockSlices | None


class BlockLook:
    """Look at any block; has no state between blocks.

    Args:
        crossing: also note where its slices are.
    """

    def __init__(self, crossing: bool) -> None:
        self.crossing = crossing

    def __call__(self, block: EventBlock[SlimEvent]) -> SurveyPart:
        ts, dur = block_times(block)
        part = SurveyPart({}, 0, 0, 0, {}, [], [], [], set(), {}, {}, None)
        account = part.account
        names: dict[tuple[str, str], str] = {}
        slices: list[int] = []
        for index, (event, text) in enumerate(zip(block.events, block.texts, strict=True)):
            kind = (event.ph, event.cat)
            name = names.get(kind)
            if name is None:
                name = names[kind] = "metadata" if event.ph == "M" else category(event.cat)
            entry = account.get(name)
            if entry is None:
                entry = account[name] = [0, 0]
            entry[0] += 1
            entry[1] += len(text)
            if event.ph == "X":
                slices.append(index)
                args = event.args
                if name in GPU_WORK:
                    part.gpu.append(-1 if args is None else args.correlation or 0)
                    if args is not None and args.stream is not None and type(event.pid) is int:
                        part.devices.add(event.pid)
                elif name in LAUNCHES:
                    if args is not None and args.correlation:
                        part.calls.append(args.correlation)
                        if is_launch(event.name):
                            part.launches.append(args.correlation)
                elif name == "user_annotation" and event.name.startswith("ProfilerStep"):
                    match = STEP_NAME.fullmatch(event.name)
                    if match:
                        part.steps[int(match[1])] = (int(ts[index]), max(0, int(dur[index])))
            elif event.ph in FLOW_PHASES:
                self._flow(part, event, name)
        self._times(part, block, ts[slices], dur[slices], np.array(slices, dtype=np.int64))
        if self.crossing:
            part.slices = slices_of(block)
        return part

    def _flow(self, part: SurveyPart, event: SlimEvent, name: str) -> None:
        starts, ends = part.flows.setdefault(f"{name}\0{event.name}", ([], []))
        if event.ph == "s":
            starts.append(flow_number(event.id))
        elif event.ph == "f":
            ends.append(flow_number(event.id))

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
        part.middle = middle
        if sane.any():
            part.low = int(ts[sane].min())
            part.high = int((ts + np.maximum(dur, 0))[sane].max())
