# SPDX-License-Identifier: Apache-2.0
"""One look over a whole trace, in constant memory: what `info` tells and `check` judges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pyroaring import BitMap64

from megatron.torch_trace.format.categories import ANNOTATIONS
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.gpu_record.clock import ClockOffset
from megatron.torch_trace.gpu_record.judgement import GpuRecord
from megatron.torch_trace.gpu_record.ledger import Ledger
from megatron.torch_trace.gpu_record.other_devices import ASCEND, OtherDevice
from megatron.torch_trace.inspect.block_survey import BlockLook, SurveyPart
from megatron.torch_trace.reader import (
    ByteStream,
    Damage,
    EventBlock,
    Metadata,
    SlimEvent,
    Trace,
)
from megatron.torch_trace.reader.cutter import Cutter
from megatron.torch_trace.rewrite.category_totals import Account
from megatron.torch_trace.rewrite.tracks.block_slices import BlockSlices, Track
from megatron.torch_trace.tracks.impossible_times import BlockTimes, far_times
from megatron.torch_trace.tracks.lanes import SliceSorter
from megatron.torch_trace.tracks.overruns import assign_lanes

OVERRUN = "on a GPU overrunning the next one of their stream by more than a second"
"""Kind of odd time that only shows when slices are sorted."""
AWAY = "far away from the rest of the trace"
LONG = "longer than the trace can be"
"""Kinds that only show when all are known; analysis and timelines leave these out."""


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
        steps: number, start and duration in ns of each step's annotation, by start; a number can
            come again.
        launches: calls that put work on a GPU, or kernels that should have run there.
        kernel_launches: launches of kernels and graphs; launches_without_work: of which nothing
            ran.
        captured: launches into a graph being captured, in none of these numbers; captured_at: when
            they were, ns.
        clock_offset: of the GPU, if it is on another clock than the CPU.
        duplicates: GPU rows that are in the trace again.
        ascend: rows of an Ascend NPU, which have no category.
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
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    launches: int = 0
    kernel_launches: int = 0
    launches_without_work: int = 0
    captured: int = 0
    captured_at: list[int] = field(default_factory=list)
    clock_offset: ClockOffset | None = None
    duplicates: int = 0
    ascend: int = 0
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
    def gpu_record(self) -> GpuRecord:
        """What was recorded of the GPU, for the one judgement that all commands share."""
        return GpuRecord(
            gpu_events=self.gpu_events,
            kernel_launches=self.kernel_launches,
            without_kernel=self.launches_without_work,
            offset=self.clock_offset,
            other=OtherDevice.among(
                {name: events for name, (events, _) in self.account.items()} | {ASCEND: self.ascend}
            ),
        )

    @property
    def gpu_is_doubtful(self) -> bool:
        """The rows that there are of the GPU, or that there should be, cannot be relied upon."""
        record = self.gpu_record
        return record.is_missing or (self.gpu_events > 0 and record.why_unknown is not None)

    @property
    def has_faults(self) -> bool:
        """What `check` reports with exit status 3."""
        maker = self.metadata.maker
        unread = maker is not None and maker.leaves_gaps
        return bool(self.damage or self.odd or self.gpu_is_doubtful or self.duplicates or unread)


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
        crossing: also find slices that cross, and GPU work that overruns the next one; sorts all
            slices, on disk if they are many.
    """
    trace = Trace(path, strict=strict, on_read=on_read)
    gathered = _Gathered(Survey(Path(path)))
    sorter = SliceSorter() if crossing else None
    try:
        for part in trace.map(BlockLook(crossing), SlimEvent, workers=workers, small_results=True):
            gathered.add(part, sorter)
        gathered.finish(trace, sorter)
    finally:
        if sorter:
            sorter.close()
    return gathered.survey


class _Gathered:
    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self.launches, self.calls, self.gpu = BitMap64(), BitMap64(), BitMap64()
        self.ledger = Ledger()
        self.times: list[BlockTimes] = []
        self.flows: dict[str, tuple[BitMap64, BitMap64]] = {}
        self.tracks: dict[tuple[Track, bool], int] = {}
        self.gpu_tracks: set[Track] = set()

    def add(self, part: SurveyPart, sorter: SliceSorter | None) -> None:
        survey = self.survey
        for name, (events, size) in part.account.items():
            entry = survey.account.setdefault(name, [0, 0])
            entry[0] += events
            entry[1] += size
        if part.times is not None:
            self.times.append(part.times)
        survey.steps += part.steps
        record = part.record
        survey.devices |= record.devices
        self.launches.update(record.calls[record.calls[:, 2] > 0, 0].tolist())
        self.calls.update(record.calls[:, 0].tolist())
        self.gpu.update(record.gpu[record.gpu[:, 0] > 0, 0].tolist())
        self.ledger.add(record)
        survey.gpu_events += part.gpu_events
        survey.ascend += part.ascend
        for kind, (starts, ends) in part.flows.items():
            known = self.flows.setdefault(kind, (BitMap64(), BitMap64()))
            known[0].update(starts)
            known[1].update(ends)
        for kind, (count, offset) in part.odd.items():
            survey.odd.setdefault(kind, OddTime()).add(count, offset)
        if sorter is not None and part.slices is not None:
            self._sort(part.slices, sorter)

    def _sort(self, slices: BlockSlices, sorter: SliceSorter) -> None:
        known = [self.tracks.setdefault(key, len(self.tracks)) for key in slices.tracks]
        if not known:
            return
        self.gpu_tracks |= slices.gpu_tracks
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
        if trace.metadata.merged is None:
            survey.steps = _outermost(survey.steps)
        else:
            # Of all ranks; one of each number tells enough.
            of_number = {mark[0]: mark for mark in survey.steps}
            survey.steps = [mark for _, mark in sorted(of_number.items())]
        survey.is_array = trace.is_array
        survey.raw_bytes = trace.raw_bytes
        survey.file_bytes = trace.stream.size
        survey.compression = trace.stream.compression
        self.ledger.finish(several_devices=len(survey.devices) > 1)
        survey.captured_at = sorted(self.ledger.captured_at.tolist())
        survey.captured = len(survey.captured_at)
        if not trace.metadata.merged:
            survey.clock_offset = self.ledger.offset
        survey.duplicates = self.ledger.duplicates
        survey.kernel_launches = len(self.launches) - survey.captured
        survey.launches_without_work = len(self.launches - self.gpu) - survey.captured
        survey.launches = len(self.launches | (self.calls & self.gpu)) - survey.captured
        survey.gpu_events_without_launch = len(self.gpu - self.calls)
        survey.flows_with_one_end = sum(len(s ^ f) for s, f in self.flows.values())
        self._look_at_times()
        if sorter is not None:
            self._look_at_tracks(sorter)

    def _look_at_times(self) -> None:
        """What analysis and timelines leave out, by the same judgement."""
        survey, found = self.survey, far_times(self.times)
        survey.span_ns = found.span
        for kind, count, first in (
            (AWAY, found.away, found.first_away),
            (LONG, found.long, found.first_long),
        ):
            if first:
                survey.odd[kind] = OddTime(count, _event_offset(survey.path, *first))

    def _look_at_tracks(self, sorter: SliceSorter) -> None:
        survey = self.survey
        on_gpu = {
            code
            for (track, mark), code in self.tracks.items()
            if track in self.gpu_tracks and not mark
        }
        survey.crossing = 0
        overruns: list[tuple[int, int]] = []
        count = 0
        for assigned in assign_lanes(sorter, on_gpu):
            survey.crossing += len(assigned.lanes)
            count += len(assigned.cut)
            addresses = ((int(b), int(i)) for b, i in assigned.piece[3:, assigned.cut].T)
            overruns = sorted([*overruns, *addresses])[:1]
        if overruns:
            offset = _event_offset(survey.path, *overruns[0])
            survey.odd.setdefault(OVERRUN, OddTime()).add(count, offset)
        mixed = {track for track, annotation in self.tracks if not annotation}
        survey.annotations_on_tracks = (
            sum(survey.account.get(name, [0, 0])[0] for name in ANNOTATIONS)
            if any(a and track in mixed for track, a in self.tracks)
            else 0
        )


def _event_offset(path: Path, block: int, index: int) -> int:
    """Byte of an event of which only the block is known: reads up to it once more."""
    if str(path) != "-":
        for raw in Cutter(ByteStream(path)):
            if raw.offset == block:
                return EventBlock(raw, SlimEvent).event_offset(index)
    return block


def _outermost(marks: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Marks of steps by start, without those within another: these are that step once more."""
    found: list[tuple[int, int, int]] = []
    for number, start, length in sorted(marks, key=lambda mark: (mark[1], -mark[2])):
        if not found or start + length > found[-1][1] + found[-1][2]:
            found.append((number, start, length))
    return found
