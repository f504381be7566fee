# SPDX-License-Identifier: Apache-2.0
"""One rank, from its file to its part of the timeline: what a worker process does.

The part is written with times that count from the rank's own first event. Where that lies on the
common timeline is known only when all ranks have been read; it is told by the few packets that are
put before the part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from megatron.torch_trace.analysis.activity import NONE, GatheredActivity
from megatron.torch_trace.analysis.collectives import attribute
from megatron.torch_trace.analysis.matching import RankCalls, rank_calls
from megatron.torch_trace.analysis.steps import MergedTraceError
from megatron.torch_trace.analysis.timeline import Timeline, place
from megatron.torch_trace.columns import Track
from megatron.torch_trace.errors import StrictError, TorchTraceError, UsageError
from megatron.torch_trace.perfetto import descriptors
from megatron.torch_trace.perfetto.blocks import LookForTimeline, TimelineEvent
from megatron.torch_trace.perfetto.emission import Emitter
from megatron.torch_trace.perfetto.events import Gathered, RankEvents
from megatron.torch_trace.perfetto.flows import Arrows, connect
from megatron.torch_trace.perfetto.order import lanes_of, order_of
from megatron.torch_trace.perfetto.streams import StreamLabel, label_streams, queue_depth
from megatron.torch_trace.perfetto.tracks import Planner, RankTitle, Shown, TrackPlan
from megatron.torch_trace.reader import Damage, Trace
from megatron.torch_trace.vocabulary import GPU_WORK
from megatron.torch_trace.writer import OutputFile


@dataclass(frozen=True, slots=True)
class RankJob:
    """What a process must know to convert a rank.

    Args:
        number: place of the rank among those that are shown.
        fallback: the rank, if the trace does not tell it.
        path: its trace.
        part: file to write.
        args: which arguments to keep.
        strict, workers: see `Trace`.
    """

    number: int
    fallback: int
    path: Path
    part: Path
    args: str
    strict: bool
    workers: int

    def with_workers(self, count: int) -> RankJob:
        return replace(self, workers=count)


@dataclass(frozen=True, slots=True)
class RankPart:
    """What a process has written, and what is still needed for the whole.

    Args:
        first_ns: its first event, as in its file, where its part's clock shows 0.
        base_ns: the file's base time, 0 if it has none.
        calls: its collectives, to align clocks; None for a trace without GPU work and steps.
        slices: slices and instants written; arrows: arrows written.
        crossing: slices that crossed others and are on lanes of their own.
    """

    job: RankJob
    rank: int
    first_ns: int
    base_ns: int
    calls: RankCalls | None
    slices: int
    arrows: int
    crossing: int
    packets: int
    raw_bytes: int
    written_bytes: int
    damage: Damage
    notes: tuple[str, ...]

    @property
    def sequence(self) -> int:
        return self.job.number + 1


def convert_rank(job: RankJob, on_read: Callable[[int], None] | None = None) -> RankPart:
    """Read a trace and write its part."""
    trace = Trace(job.path, strict=job.strict, on_read=on_read)
    gathered, activity = Gathered(), GatheredActivity()
    look = LookForTimeline(job.args)
    for block in trace.map(look, TimelineEvent, workers=job.workers, small_results=True):
        gathered.add(block)
        activity.add(block.activity)
    found = gathered.finish(GPU_WORK)
    timeline = place(activity.finish(trace))
    calls = None
    labels: Mapping[Track, StreamLabel] = {}
    main = None
    if timeline is not None:
        attributed = attribute(timeline)
        labels = label_streams(timeline, attributed)
        calls = rank_calls(timeline, attributed)
        if timeline.window.track != NONE:
            main = timeline.activity.tracks[timeline.window.track]
    metadata = trace.metadata
    if metadata.merged is not None:
        raise MergedTraceError(job.path)
    rank = job.fallback if metadata.rank is None else metadata.rank
    title = RankTitle(rank, metadata.world_size or 0, metadata.coordinates, main)
    planner = Planner(job.number, title, found, labels)
    writer = _PartWriter(job, found, planner)
    with OutputFile(job.part) as sink:
        writer.write(sink, timeline)
    return RankPart(
        job=job,
        rank=rank,
        first_ns=found.first_ns,
        base_ns=metadata.base_time_ns,
        calls=calls,
        slices=len(found.events["ts"]),
        arrows=writer.arrows,
        crossing=writer.moved,
        packets=writer.packets,
        raw_bytes=trace.raw_bytes,
        written_bytes=sink.written,
        damage=trace.damage,
        notes=tuple(_notes(job, found)),
    )


def attempt_rank(job: RankJob) -> RankPart | TorchTraceError:
    """The same in another process: errors with arguments of their own do not survive the way."""
    try:
        return convert_rank(job)
    except TorchTraceError as error:
        kinds = (StrictError, UsageError, TorchTraceError)
        return next(kind for kind in kinds if isinstance(error, kind))(str(error))


class _PartWriter:
    def __init__(self, job: RankJob, found: RankEvents, planner: Planner) -> None:
        self._job, self._found, self._planner = job, found, planner
        self.moved = self.arrows = self.packets = 0

    def write(self, sink: OutputFile, timeline: Timeline | None) -> None:
        plan = self._planner.lay_out()
        zero = self._found.first_ns
        arrows, row = self._sort(plan)
        self.arrows = arrows.count
        lanes = list(self._lanes(plan, row))
        points = list(self._points(plan, timeline))
        sequence = self._job.number + 1
        emitter = Emitter(sink.write, sequence, self._found, arrows, zero, self._planner.uuid())
        values = self._found.values
        sink.write(descriptors.beginning(sequence))
        for kind, words in (
            (descriptors.CATEGORIES, values["category"]),
            (descriptors.NAMES, values["name"]),
            (descriptors.ARGUMENT_NAMES, emitter.argument_names),
            (descriptors.ARGUMENT_TEXTS, values["text"]),
        ):
            for packet in descriptors.interned(sequence, kind, words):
                sink.write(packet)
        for content in plan.descriptors:
            sink.write(descriptors.packet(sequence, content))
        for events, uuid in lanes:
            ts = self._found.events["ts"][events]
            order = order_of(ts, ts + self._found.events["dur"][events])
            assert order is not None
            emitter.lane(events, order, uuid)
        for ts, numbers, uuid in points:
            emitter.counter(ts, numbers, uuid)
        self.packets = emitter.packets

    def _sort(self, plan: TrackPlan) -> tuple[Arrows, np.ndarray]:
        """Sort the events by row, start, longest first; connect arrows to them."""
        found = self._found
        events = found.events
        marks = np.array([c == "gpu_user_annotation" for c in found.values["category"]], dtype=bool)
        mark = marks[events["category"]]
        rows = plan.row_of[events["track"], mark.astype(np.int64)]
        order = np.lexsort((-events["dur"], events["ts"], rows))
        for column in list(events):
            events[column] = events[column][order]
        rows, mark = rows[order], mark[order]
        may_hold = ~mark & (events["instant"] == 0)
        # Rows are numbered by track, so tracks are as sorted as rows, annotations left out.
        ends = events["ts"] + events["dur"]
        own = np.where(found.arrows["track"] >= 0, plan.row_of[found.arrows["track"], 0], -1)
        return connect(found, own, rows, events["ts"], ends, may_hold), rows

    def _lanes(self, plan: TrackPlan, row: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
        ts, dur = self._found.events["ts"], self._found.events["dur"]
        bounds = np.searchsorted(row, np.arange(len(plan.rows) + 1))
        for number, shown in enumerate(plan.rows):
            start, stop = int(bounds[number]), int(bounds[number + 1])
            if start == stop:
                continue
            here = slice(start, stop)
            for lane, places in enumerate(lanes_of(ts[here], ts[here] + dur[here])):
                uuid = shown.uuid if not lane else self._new_lane(plan, shown, lane)
                self.moved += len(places) if lane else 0
                yield places + start, uuid

    def _new_lane(self, plan: TrackPlan, shown: Shown, lane: int) -> int:
        uuid = self._planner.uuid()
        name = f"{shown.name} crossing {lane}"
        parent, order = shown.parent or shown.uuid, shown.order
        plan.descriptors.append(descriptors.child(uuid, name, parent, order))
        return uuid

    def _points(
        self, plan: TrackPlan, timeline: Timeline | None
    ) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        """Counters: (times, values, row)."""
        rank = self._planner.title.short
        memory = self._found.memory
        for device, root in plan.roots.items():
            mine = memory["device"] == device if len(memory["ts"]) else None
            if mine is not None and mine.any():
                for what in ("allocated", "reserved"):
                    uuid = self._counter(plan, root, f"{rank} memory {what}", descriptors.BYTES)
                    order = np.argsort(memory["ts"][mine], kind="stable")
                    yield memory["ts"][mine][order], memory[what][mine][order], uuid
            if timeline is not None and timeline.devices.analysed == device:
                ts, depth = queue_depth(timeline)
                if len(ts):
                    name = f"{rank} launched work waiting"
                    yield ts, depth, self._counter(plan, root, name, descriptors.COUNT)

    def _counter(self, plan: TrackPlan, root: int, name: str, unit: int) -> int:
        uuid = self._planner.uuid()
        plan.descriptors.append(descriptors.counter(uuid, name, root, uuid, unit))
        return uuid


def _notes(job: RankJob, found: RankEvents) -> Iterator[str]:
    if found.left_out:
        phases = ", ".join(
            f"{count:,} of phase {phase or '?'}" for phase, count in sorted(found.left_out.items())
        )
        yield f"{job.path}: {phases} are neither slices, instants nor arrows and were left out."
    lost = found.odd + found.without_start
    if lost:
        yield f"{job.path}: {lost:,} events without a time, or absurdly far off, were left out."
