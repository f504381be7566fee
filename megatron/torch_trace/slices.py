# SPDX-License-Identifier: Apache-2.0
"""The slices of one block with the track each is on, and what tracks and processes are called."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np

from megatron.torch_trace.kinds import coded
from megatron.torch_trace.lanes import Ints
from megatron.torch_trace.reader import EventBlock, SlimEvent
from megatron.torch_trace.reader.event import Identity
from megatron.torch_trace.times import NO_TIME, block_times
from megatron.torch_trace.vocabulary import ANNOTATIONS, GPU_WORK, category

Track = tuple[Identity, Identity]

_LARGEST_ID = (1 << 32) - 1
_NO_TRACK = -1


def _none() -> Ints:
    return np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class BlockSlices:
    """What one block contributes."""

    block: int
    tracks: list[tuple[Track, bool]] = field(default_factory=list)
    codes: Ints = field(default_factory=_none)
    ts: Ints = field(default_factory=_none)
    dur: Ints = field(default_factory=_none)
    index: Ints = field(default_factory=_none)
    names: dict[Track, str] = field(default_factory=dict)
    sort_indices: dict[Track, int] = field(default_factory=dict)
    process_names: dict[Identity, str] = field(default_factory=dict)
    labels: dict[Identity, str] = field(default_factory=dict)
    gpu_tracks: set[Track] = field(default_factory=set)
    others: set[Track] = field(default_factory=set)
    process_events: list[bytes] = field(default_factory=list)
    named: set[Identity] = field(default_factory=set)


def slices_of(block: EventBlock[SlimEvent]) -> BlockSlices:
    """The slices of a block with the track each is on, and the names that tracks have."""
    ts, dur = block_times(block)
    keys, code = coded([(e.ph, e.cat, e.pid, e.tid) for e in block.events])
    found = BlockSlices(block=block.offset)
    tracks: dict[tuple[Track, bool], int] = {}
    track_of = np.full(len(keys), _NO_TRACK)
    is_metadata = np.zeros(len(keys), dtype=bool)
    for number, (phase, written, pid, tid) in enumerate(keys):
        track = (pid, tid)
        if phase == "X":
            name = category(written)
            track_of[number] = tracks.setdefault((track, name in ANNOTATIONS), len(tracks))
            if name in GPU_WORK:
                found.gpu_tracks.add(track)
        elif phase == "M":
            is_metadata[number] = True
        else:
            found.others.add(track)
    for index in np.flatnonzero(is_metadata[code]).tolist():
        _note_name(block.events[index], block.texts[index], found)
    codes = track_of[code]
    found.index = np.flatnonzero(codes != _NO_TRACK)
    found.tracks, found.codes = list(tracks), codes[found.index]
    found.ts, found.dur = ts[found.index], dur[found.index]
    found.dur[found.dur == NO_TIME] = 0
    return found


def _note_name(event: SlimEvent, text: bytes, found: BlockSlices) -> None:
    found.named.add(event.pid)
    if event.name.startswith("process_") or not fits_perfetto((event.pid, event.tid)):
        found.process_events.append(text)
    if event.name not in ("thread_name", "thread_sort_index", "process_name", "process_labels"):
        return
    args = json.loads(text).get("args")
    if not isinstance(args, dict):
        return
    track = (event.pid, event.tid)
    name, sort_index = args.get("name"), args.get("sort_index")
    if event.name == "thread_sort_index" and isinstance(sort_index, int):
        found.sort_indices[track] = sort_index
    elif event.name == "thread_name" and isinstance(name, str):
        found.names[track] = name
    elif event.name == "process_name" and isinstance(name, str):
        found.process_names[event.pid] = name
    elif event.name == "process_labels" and isinstance(args.get("labels"), str):
        found.labels[event.pid] = args["labels"]


def fits_perfetto(track: Track) -> bool:
    """Whether Perfetto takes a track's numbers as they are."""
    pid, tid = track
    return fits(pid) and fits(tid) and not (tid == 0 and pid != 0)


def fits(number: Identity) -> bool:
    return isinstance(number, int) and 0 <= number <= _LARGEST_ID
