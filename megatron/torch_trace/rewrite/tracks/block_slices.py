# SPDX-License-Identifier: Apache-2.0
"""The slices of one block with the track each is on, and what tracks and processes are called."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megatron.torch_trace.columns.block_times import block_times
from megatron.torch_trace.columns.codes import TupleCodes
from megatron.torch_trace.format.categories import ANNOTATIONS, GPU_WORK, category
from megatron.torch_trace.format.integer_arrays import Ints
from megatron.torch_trace.format.json_text import value_of
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.format.tracks import Track as Track
from megatron.torch_trace.reader import EventBlock
from megatron.torch_trace.reader.event import Identity
from megatron.torch_trace.rewrite.event_kinds import Keyed

_LARGEST_ID = (1 << 32) - 1
_NO_TRACK = -1


def _none() -> Ints:
    return np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class BlockSlices:
    """What one block contributes.

    Attributes:
        block: its offset.
        tracks: (track, whether it is that track's annotations), which `codes` count.
        codes, ts, dur, index: of each slice; times in ns, and its index in the block.
        unfinished: indices of slices with a negative duration.
        unfit: track whose ids Perfetto cannot take -> indices of its events.
        replaced: indices of the metadata that `process_events` holds as text.
    """

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
    unfinished: list[int] = field(default_factory=list)
    unfit: dict[Track, list[int]] = field(default_factory=dict)
    replaced: list[int] = field(default_factory=list)


def keyed(block: EventBlock[Any]) -> Keyed:
    """The different (phase, category, pid, tid), and for each event its index among them."""
    codes = TupleCodes(4)
    code = [codes[event.ph][event.cat][event.pid][event.tid] for event in block.events]
    return list(codes.codes), np.fromiter(code, dtype=np.intp, count=len(code))


def slices_of(
    block: EventBlock[Any],
    times: tuple[Ints, Ints] | None = None,
    events: Keyed | None = None,
) -> BlockSlices:
    """The slices of a block with the track each is on, and the names that tracks have.

    Args:
        block: of `TrackEvent`, or of events with more fields.
        times: its `block_times`, if they are known.
        events: what `keyed` says of it, if that is known.
    """
    ts, dur = times or block_times(block)
    keys, code = events or keyed(block)
    found = BlockSlices(block=block.offset)
    tracks: dict[tuple[Track, bool], int] = {}
    track_of = np.full(len(keys), _NO_TRACK)
    is_metadata = np.zeros(len(keys), dtype=bool)
    for number, (phase, written, pid, tid) in enumerate(keys):
        track = (pid, tid)
        if phase == "M":
            is_metadata[number] = True
            continue
        if phase == "X":
            name = category(written)
            track_of[number] = tracks.setdefault((track, name in ANNOTATIONS), len(tracks))
            if name in GPU_WORK:
                found.gpu_tracks.add(track)
        else:
            found.others.add(track)
        if not fits_perfetto(track):
            found.unfit.setdefault(track, []).extend(np.flatnonzero(code == number).tolist())
    for index in np.flatnonzero(is_metadata[code]).tolist():
        _note_name(block, index, found)
    codes = track_of[code]
    found.index = np.flatnonzero(codes != _NO_TRACK)
    found.tracks, found.codes = list(tracks), codes[found.index]
    found.ts, found.dur = ts[found.index], dur[found.index]
    found.dur[found.dur == NO_TIME] = 0
    found.unfinished = found.index[found.dur < 0].tolist()
    return found


def _note_name(block: EventBlock[Any], index: int, found: BlockSlices) -> None:
    text = b"{%b}" % block.event_texts[index]
    event = value_of(text)
    kind, args = event.get("name"), event.get("args")
    pid, tid = block.events[index].pid, block.events[index].tid
    track = (pid, tid)
    found.named.add(pid)
    of_process = isinstance(kind, str) and kind.startswith("process_")
    if not of_process and not fits_perfetto(track):
        found.unfit.setdefault(track, []).append(index)
    if of_process or not fits_perfetto(track):
        found.process_events.append(text)
        found.replaced.append(index)
    if not isinstance(args, dict):
        return
    name, sort_index = args.get("name"), args.get("sort_index")
    if kind == "thread_sort_index" and isinstance(sort_index, int):
        found.sort_indices[track] = sort_index
    elif kind == "thread_name" and isinstance(name, str):
        found.names[track] = name
    elif kind == "process_name" and isinstance(name, str):
        found.process_names[pid] = name
    elif kind == "process_labels" and isinstance(args.get("labels"), str):
        found.labels[pid] = args["labels"]


def fits_perfetto(track: Track) -> bool:
    """Whether Perfetto takes a track's numbers as they are."""
    pid, tid = track
    return fits(pid) and fits(tid) and not (tid == 0 and pid != 0)


def fits(number: Identity) -> bool:
    return isinstance(number, int) and 0 <= number <= _LARGEST_ID
