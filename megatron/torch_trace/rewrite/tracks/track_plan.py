# SPDX-License-Identifier: Apache-2.0
"""Tracks on which Perfetto v51 to v56 loses nothing: which event must move where.

Two things make those versions drop slices or put them on a wrong track. Slices of one track that
cross: annotations get a track of their own, and what still crosses a lane of its own. Numbers that
Perfetto cannot take: it makes negative or 64-bit ids 0, and tid 0 the main thread, so tracks with
such ids are given free ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.format.integer_arrays import distinct
from megatron.torch_trace.format.json_text import text_of
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.reader import Trace
from megatron.torch_trace.reader.event import Identity, TrackEvent
from megatron.torch_trace.reader.texts import Texts
from megatron.torch_trace.rewrite.event_fields import clipped, on_track, replaced
from megatron.torch_trace.rewrite.tracks.block_slices import (
    BlockSlices,
    Track,
    fits,
    fits_perfetto,
    slices_of,
)
from megatron.torch_trace.rewrite.tracks.relocations import Moves
from megatron.torch_trace.tracks.lanes import SliceSorter
from megatron.torch_trace.tracks.overruns import Assigned, assign_lanes

_FIRST_FREE = 0x7000_0000


@dataclass(slots=True)
class TrackPlan:
    """Where events go.

    Attributes:
        renamed: track -> track, for all its events, where Perfetto cannot take the ids.
        moves: which events leave their track, those of renamed ones included.
        metadata: events that name the new tracks, as JSON.
        crossing: slices that crossed others, by category; annotations that moved not included.
        annotations: annotations that moved.
        clipped: offset of a block -> {index of an event in it: duration in ns} of GPU work that
            overruns the next one implausibly.
        origins: new track -> the track that its events come from.
        processes: processes that have events, be it only metadata.
        labels: process -> what Kineto calls it: `CPU`, `GPU 0`.
        gpus: processes that are GPUs.
        first_ns: start of the earliest slice, as in the file; 0 without slices.
        unfinished: offset of a block -> indices of slices in it that have a negative duration.
        process_events: metadata events of processes and of tracks that Perfetto cannot take.
        replaced: offset of a block -> indices of these events in it.
        active: tracks that have events other than metadata.
    """

    renamed: dict[Track, Track] = field(default_factory=dict)
    moves: Moves = field(default_factory=Moves)
    metadata: list[bytes] = field(default_factory=list)
    crossing: int = 0
    annotations: int = 0
    clipped: dict[int, dict[int, int]] = field(default_factory=dict)
    origins: dict[Track, Track] = field(default_factory=dict)
    processes: set[Identity] = field(default_factory=set)
    labels: dict[Identity, str] = field(default_factory=dict)
    gpus: set[Identity] = field(default_factory=set)
    first_ns: int = 0
    unfinished: dict[int, list[int]] = field(default_factory=dict)
    process_events: list[bytes] = field(default_factory=list)
    replaced: dict[int, list[int]] = field(default_factory=dict)
    active: set[Track] = field(default_factory=set)

    def changes_in(self, block: int) -> int:
        """How many events of the block at this offset move or get another duration."""
        return (
            self.moves.count(block)
            + len(self.clipped.get(block, ()))
            + len(self.unfinished.get(block, ()))
        )

    def changed(self, block: int, texts: Texts, moved: Mapping[int, Track]) -> dict[int, bytes]:
        """Index in a block -> new text without braces, of the events that change.

        Args:
            block: its offset.
            moved: indices of those that leave their track; arrows that go with them may be added.
        """
        new = {index: on_track(texts[index], track) for index, track in moved.items()}
        for index in self.unfinished.get(block, ()):
            new[index] = replaced(new.get(index, texts[index]), {"dur": b"0"})
        for index, ns in self.clipped.get(block, {}).items():
            new[index] = clipped(new.get(index, texts[index]), ns)
        return new

    def process_kind(self, pid: Identity) -> str:
        """What a process is, for people: `CPU`, `GPU 0`, `profiler overhead`, `Spans`."""
        if pid in self.gpus:
            return f"GPU {pid}"
        if pid in self.labels:
            return self.labels[pid]
        if pid == -1:
            return "profiler overhead"
        return "CPU" if isinstance(pid, int) else pid or "trace"


def plan_tracks(
    trace: Trace, *, workers: int = 1, folder: Path | None = None, clip: bool = False
) -> TrackPlan:
    """Read the whole trace once and decide which events must move.

    Args:
        trace: not read yet.
        clip: also find GPU work that overruns the next one implausibly.
        folder: where to put what does not fit into memory.
    """
    with TrackPlanner(folder) as planner:
        for part in trace.map(slices_of, TrackEvent, workers=workers, small_results=True):
            planner.add(part)
        return planner.plan(clip)


class TrackPlanner:
    """Given the slices of all blocks, decide which events must move.

    Args:
        folder: where to put what does not fit into memory.
    """

    def __init__(self, folder: Path | None) -> None:
        self.sorter = SliceSorter(folder)
        self.codes: dict[tuple[Track, bool], int] = {}
        self.names: dict[Track, str] = {}
        self.sort_indices: dict[Track, int] = {}
        self.process_names: dict[Identity, str] = {}
        self.others: set[Track] = set()
        self.labels: dict[Identity, str] = {}
        self.gpu_tracks: set[Track] = set()
        self.first_ns = 0
        self.process_events: list[bytes] = []
        self.replaced: dict[int, list[int]] = {}
        self.unfinished: dict[int, list[int]] = {}
        self.unfit: dict[Track, list[tuple[int, NDArray[np.int32]]]] = {}
        self.named: set[Identity] = set()
        self._next = _FIRST_FREE

    def __enter__(self) -> TrackPlanner:
        return self

    def __exit__(self, *error: object) -> None:
        self.sorter.close()

    def add(self, part: BlockSlices) -> None:
        """Take in the slices of a block."""
        known = [self.codes.setdefault(key, len(self.codes)) for key in part.tracks]
        if known:
            codes = np.array(known, dtype=np.int64)[part.codes]
            rows = (codes, part.ts, part.dur, part.index)
            present = part.ts != NO_TIME
            if not present.all():
                rows = (codes[present], part.ts[present], part.dur[present], part.index[present])
            self.sorter.add(*rows[:3], part.block, rows[3])
        self.names.update(part.names)
        self.sort_indices.update(part.sort_indices)
        self.process_names.update(part.process_names)
        self.others |= part.others
        self.process_events += part.process_events
        if part.replaced:
            self.replaced[part.block] = part.replaced
        if part.unfinished:
            self.unfinished[part.block] = part.unfinished
        for track, indices in part.unfit.items():
            entry = (part.block, np.array(indices, dtype=np.int32))
            self.unfit.setdefault(track, []).append(entry)
        self.named |= part.named
        self.labels.update(part.labels)
        self.gpu_tracks |= part.gpu_tracks
        starts = part.ts[part.ts > 0]
        if len(starts):
            first = int(starts.min())
            self.first_ns = min(self.first_ns, first) if self.first_ns else first

    def plan(self, clip: bool) -> TrackPlan:
        """Decide; `clip` also finds GPU work that overruns the next one implausibly."""
        gpus = {pid for pid, _ in self.gpu_tracks}
        plan = TrackPlan(
            labels=self.labels,
            gpus=gpus,
            first_ns=self.first_ns,
            unfinished=self.unfinished,
            process_events=self.process_events,
            replaced=self.replaced,
        )
        taken = {number for track, _ in self.codes for number in track}
        while any(number in taken for number in range(self._next, self._next + 4096)):
            self._next += 4096
        tracks = {track for track, _ in self.codes} | self.others
        plan.processes = {pid for pid, _ in tracks} | self.named
        plan.active = tracks
        self._rename(plan, tracks)
        keys = list(self.codes)
        on_gpu = {
            code for code, (track, mark) in enumerate(keys) if track in self.gpu_tracks and not mark
        }
        targets: dict[tuple[int, int], Track] = {}
        for assigned in assign_lanes(self.sorter, on_gpu if clip else ()):
            for position in assigned.cut:
                block, index = assigned.piece[3:, position].tolist()
                plan.clipped.setdefault(block, {})[index] = int(assigned.piece[2, position])
            self._move(plan, assigned, keys, targets)
        return plan

    def _move(
        self,
        plan: TrackPlan,
        assigned: Assigned,
        keys: list[tuple[Track, bool]],
        targets: dict[tuple[int, int], Track],
    ) -> None:
        """Annotations leave a track that holds other slices too; on their own they stay."""
        code, piece, lanes, _ = assigned
        track, is_annotation = keys[code]
        leaving = is_annotation and (track, False) in self.codes
        lane_of = np.zeros(piece.shape[1], dtype=np.int64)
        lane_of[list(lanes)] = list(lanes.values())
        for lane in distinct(lane_of).tolist():
            if not lane and not leaving:
                continue
            target = targets.get((code, lane))
            if target is None:
                target = self._new_track(plan, track, is_annotation, lane)
                targets[code, lane] = target
            _, _, _, blocks, indices = piece[:, lane_of == lane]
            plan.moves.add(target, blocks, indices)
            if lane:
                plan.crossing += len(indices)
            else:
                plan.annotations += len(indices)

    def _rename(self, plan: TrackPlan, tracks: set[Track]) -> None:
        processes: dict[Identity, int] = {}
        for track in sorted(tracks, key=str):
            pid, _ = track
            if fits_perfetto(track):
                continue
            if not fits(pid) and pid not in processes:
                processes[pid] = self._free()
                name = self.process_names.get(pid) or (
                    "profiler overhead" if pid == -1 else str(pid or "trace")
                )
                plan.metadata.append(_name_event("process_name", processes[pid], 0, name=name))
            new_pid = processes.get(pid, pid)
            new = (new_pid, self._free())
            plan.renamed[track] = new
            for block, indices in self.unfit.get(track, ()):
                plan.moves.add(new, np.full(len(indices), block), indices.astype(np.int64))
            plan.origins[new] = track
            plan.metadata += self._names(new, self._name(track), self.sort_indices.get(track))

    def _new_track(self, plan: TrackPlan, track: Track, is_annotation: bool, lane: int) -> Track:
        name = self._name(track)
        name += " annotations" if is_annotation else ""
        name += f" crossing {lane}" if lane else ""
        pid = plan.renamed.get(track, track)[0]
        new = (pid, self._free())
        plan.origins[new] = track
        plan.metadata += self._names(new, name, self.sort_indices.get(track))
        return new

    def _name(self, track: Track) -> str:
        _, tid = track
        name = self.names.get(track, "").strip()
        return name or (tid if isinstance(tid, str) and tid else f"thread {tid}")

    def _names(self, track: Track, name: str, sort_index: int | None) -> list[bytes]:
        pid, tid = track
        events = [_name_event("thread_name", pid, tid, name=name)]
        if sort_index is not None:
            events.append(_name_event("thread_sort_index", pid, tid, sort_index=sort_index))
        return events

    def _free(self) -> int:
        self._next += 1
        return self._next


def _name_event(kind: str, pid: Identity, tid: Identity, **args: object) -> bytes:
    event = {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}
    return text_of(event).encode()
