# SPDX-License-Identifier: Apache-2.0
"""One look over a whole trace, in constant memory: what `info` tells and `check` judges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pyroaring import BitMap64

from megatron.torch_trace.accounts import Account
from megatron.torch_trace.lanes import SliceSorter, assign_lanes
from megatron.torch_trace.reader import Damage, EventBlock, Metadata, SlimEvent, Trace
from megatron.torch_trace.reader.event import Identity
from megatron.torch_trace.slim import STEP_NAME
from megatron.torch_trace.times import NO_TIME, block_times
from megatron.torch_trace.tracks import slices_of
from megatron.torch_trace.vocabulary import (
    ANNOTATIONS,
    FLOW_PHASES,
    GPU_WORK,
    LAUNCHES,
    category,
    is_launch,
)

_FAR_NS = 86_400 * 1_000_000_000
_LONG_NS = 86_400 * 1_000_000_000


@dataclass(slots=True)
class OddTime:
    """Slices whose times cannot be true: how many, and the byte of the first."""

    count: int = 0
    offset: int = -1

    def add(self, count: int, offset: int) -> None:
        if count and (self.offset < 0 or offset < self.offset):
            self.offset = offset
        self.count += count


@dataclass(slots=True)
class Survey:
    """What a trace holds.

    Attributes:
        path, metadata, damage, is_array: as in `reader.Trace`.
        raw_bytes, file_bytes: uncompressed, and as it lies on disk (None for standard input).
        compression: gzip, zstd or none.
        account: category -> [events, bytes of text].
        span_ns: (start, end) of all slices with sane times, as in the file; None without slices.
        steps: number of a step -> (start, duration) of its annotation, in ns.
        launches: calls that put work on a GPU; launches_without_work: of which nothing ran.
        gpu_events: kernels, copies, memsets; gpu_events_without_launch: of unknown origin.
        odd: kind of odd time -> how many.
        flows_with_one_end: arrows that begin or end nowhere.
        crossing: category -> slices that cross another one of their track; None if not looked at.
        annotations_on_tracks: annotations that share a track with other slices.
    """

    path: Path
    metadata: Metadata = field(default_factory=Metadata)
    damage: Damage = field(default_factory=Damage)
    is_array: bool = False
    raw_bytes: int = 0
    file_bytes: int | None = None
    compression: str = "none"
    account: Account = field(default_factory=dict)
    span_ns: tuple[int, int] | None = None
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    launches: int = 0
    launches_without_work: int = 0
    gpu_events: int = 0
    gpu_events_without_launch: int = 0
    odd: dict[str, OddTime] = field(default_factory=dict)
    flows_with_one_end: int = 0
    crossing: int | None = None
    annotations_on_tracks: int = 0
    devices: set[int] = field(default_factory=set)

    @property
    def events(self) -> int:
        return sum(events for events, _ in self.account.values())

    @property
    def gpu_is_missing(self) -> bool:
        """There were launches, but nothing that ran: the GPU's activity was not recorded."""
        return self.launches > 0 and self.gpu_events == 0

    @property
    def gpu_is_incomplete(self) -> bool:
        """More than one launch in twenty has nothing that ran: utilisation is unknown."""
        return self.launches_without_work * 20 > self.launches > 0

    @property
    def has_faults(self) -> bool:
        """What `check` reports with exit status 3."""
        return bool(self.damage or self.odd or self.gpu_is_missing or self.gpu_is_incomplete)


def survey(
    path: Path | str,
    *,
    crossing: bool = False,
    strict: bool = False,
    workers: int = 1,
    on_read: Callable[[int], None] | None = None,
) -> Survey:
    """Look over a trace once.

    Args:
        crossing: also find slices that cross; sorts all slices, on disk if they are many.
    """
    trace = Trace(path, strict=strict, on_read=on_read)
    gathered = _Gathered(Survey(Path(path)))
    sorter = SliceSorter() if crossing else None
    try:
        for part in trace.map(_Look(crossing), SlimEvent, workers=workers, small_results=True):
            gathered.add(part, sorter)
        gathered.finish(trace, sorter)
    finally:
        if sorter:
            sorter.close()
    return gathered.survey


@dataclass(slots=True)
class _Part:
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
    slices: object


class _Look:
    """What one block contributes."""

    def __init__(self, crossing: bool) -> None:
        self.crossing = crossing

    def __call__(self, block: EventBlock[SlimEvent]) -> _Part:
        ts, dur = block_times(block)
        part = _Part({}, 0, 0, 0, {}, [], [], [], set(), {}, {}, None)
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

    def _flow(self, part: _Part, event: SlimEvent, name: str) -> None:
        from megatron.torch_trace.spool import flow_number

        starts, ends = part.flows.setdefault(f"{name}\0{event.name}", ([], []))
        if event.ph == "s":
            starts.append(flow_number(event.id))
        elif event.ph == "f":
            ends.append(flow_number(event.id))

    def _times(
        self,
        part: _Part,
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


class _Gathered:
    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self.launches, self.calls, self.gpu = BitMap64(), BitMap64(), BitMap64()
        self.flows: dict[str, tuple[BitMap64, BitMap64]] = {}
        self.tracks: dict[tuple[tuple[Identity, Identity], bool], int] = {}

    def add(self, part: _Part, sorter: SliceSorter | None) -> None:
        survey = self.survey
        for name, (events, size) in part.account.items():
            entry = survey.account.setdefault(name, [0, 0])
            entry[0] += events
            entry[1] += size
        if part.high:
            low, high = survey.span_ns or (part.low, part.high)
            survey.span_ns = (min(low, part.low), max(high, part.high))
        survey.steps.update(part.steps)
        survey.devices |= part.devices
        self.launches.update(_ids(part.launches))
        self.calls.update(_ids(part.calls))
        self.gpu.update(_ids(part.gpu))
        survey.gpu_events += len(part.gpu)
        for kind, (starts, ends) in part.flows.items():
            known = self.flows.setdefault(kind, (BitMap64(), BitMap64()))
            known[0].update(starts)
            known[1].update(ends)
        for kind, (count, offset) in part.odd.items():
            survey.odd.setdefault(kind, OddTime()).add(count, offset)
        if sorter is not None:
            self._sort(part.slices, sorter)

    def _sort(self, slices: object, sorter: SliceSorter) -> None:
        from megatron.torch_trace.tracks import BlockSlices

        assert isinstance(slices, BlockSlices)
        known = [self.tracks.setdefault(key, len(self.tracks)) for key in slices.tracks]
        if not known:
            return
        present = slices.ts != NO_TIME
        codes = np.array(known, dtype=np.int64)[slices.codes]
        sorter.add(
            codes[present],
            slices.ts[present],
            slices.dur[present],
            slices.block,
            slices.index[present],
        )

    def finish(self, trace: Trace, sorter: SliceSorter | None) -> None:
        survey = self.survey
        survey.metadata, survey.damage = trace.metadata, trace.damage
        survey.is_array = trace.is_array
        survey.raw_bytes = trace.raw_bytes
        survey.file_bytes = trace.stream.size
        survey.compression = trace.stream.compression
        survey.launches = len(self.launches)
        survey.launches_without_work = len(self.launches - self.gpu)
        survey.gpu_events_without_launch = len(self.gpu - self.calls)
        survey.flows_with_one_end = sum(len(s ^ f) for s, f in self.flows.values())
        if sorter is not None:
            survey.crossing = sum(len(lanes) for _, _, lanes in assign_lanes(sorter))
            mixed = {track for track, annotation in self.tracks if not annotation}
            survey.annotations_on_tracks = (
                sum(survey.account.get(name, [0, 0])[0] for name in ANNOTATIONS)
                if any(a and track in mixed for track, a in self.tracks)
                else 0
            )


def _ids(numbers: list[int]) -> list[int]:
    return [number for number in numbers if 0 < number < 1 << 64]
