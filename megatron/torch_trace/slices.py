# SPDX-License-Identifier: Apache-2.0
"""The slices of one block with the track each is on, and what tracks and processes are called."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.lanes import Ints
from megatron.torch_trace.reader import EventBlock, SlimEvent
from megatron.torch_trace.reader.event import Identity
from megatron.torch_trace.times import NO_TIME, block_times
from megatron.torch_trace.vocabulary import ANNOTATIONS, GPU_WORK, category

Track = tuple[Identity, Identity]

_LARGEST_ID = (1 << 32) - 1


@dataclass(slots=True)
class BlockSlices:
    """What one block contributes."""

    block: int
    tracks: list[tuple[Track, bool]]
    codes: Ints
    ts: Ints
    dur: Ints
    index: Ints
    names: dict[Track, str]
    sort_indices: dict[Track, int]
    process_names: dict[Identity, str]
    labels: dict[Identity, str]
    gpu_tracks: set[Track]
    others: set[Track]
    process_events: list[bytes]
    named: set[Identity]


def slices_of(block: EventBlock[SlimEvent]) -> BlockSlices:
    """The slices of a block with the track each is on, and the names that tracks have."""
    ts, dur = block_times(block)
    codes: dict[tuple[Track, bool], int] = {}
    rows: list[int] = []
    row_codes: list[int] = []
    found = BlockSlices(
        block=block.offset,
        tracks=[],
        codes=ts,
        ts=ts,
        dur=dur,
        index=ts,
        names={},
        sort_indices={},
        process_names={},
        labels={},
        gpu_tracks=set(),
        others=set(),
        process_events=[],
        named=set(),
    )
    for index, event in enumerate(block.events):
        track = (event.pid, event.tid)
        if event.ph == "X":
            name = category(event.cat)
            key = (track, name in ANNOTATIONS)
            if name in GPU_WORK:
                found.gpu_tracks.add(track)
            row_codes.append(codes.setdefault(key, len(codes)))
            rows.append(index)
        elif event.ph == "M":
            _note_name(event, block.texts[index], found)
        else:
            found.others.add(track)
    dur = dur[rows]
    dur[dur == NO_TIME] = 0
    found.tracks = list(codes)
    found.codes = np.array(row_codes, dtype=np.int64)
    found.ts, found.dur, found.index = ts[rows], dur, np.array(rows, dtype=np.int64)
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
