# SPDX-License-Identifier: Apache-2.0
"""The part of `merge` that knows one rank: its new numbers, and its events' text with them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from megatron.torch_trace.filters import join_object
from megatron.torch_trace.reader import EventBlock, Metadata, SlimEvent, Trace
from megatron.torch_trace.reader.event import Identity
from megatron.torch_trace.slices import Track, fits_perfetto
from megatron.torch_trace.sources import RankedTrace
from megatron.torch_trace.times import ns_of_text, text_of_ns
from megatron.torch_trace.tracks import TrackPlan, plan_tracks
from megatron.torch_trace.vocabulary import FLOW_PHASES
from megatron.torch_trace.writer import join, join_inner

LINKING_IDS = ("correlation", "External id")
"""Arguments that link events of one rank, and must not link those of two."""

_PIDS_PER_RANK = 1000
_LARGEST_ID = 1 << 53


@dataclass(slots=True)
class RankPlan:
    """How one rank's events change.

    Attributes:
        number, count: this is the `number`-th of `count` ranks.
        first_ns: start of its first slice, as in its file.
        shift_ns: what is added to its times; offset_ns: how much of it aligns its clock.
        pids: its process ids -> new ones.
        tracks: which slices leave their track.
        names: metadata events that name its processes and new tracks.
        unnamed: metadata events that were left out for them, as text.
    """

    number: int
    count: int
    rank: int
    path: Path
    metadata: Metadata
    base_ns: int
    first_ns: int
    tracks: TrackPlan
    pids: dict[Identity, int]
    shift_ns: int = 0
    offset_ns: int = 0
    names: list[bytes] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)

    def record(self, base: int) -> dict[str, Any]:
        """What a reader must know to take this rank out of the merged file again."""
        return {
            "rank": self.rank,
            "file": self.path.name,
            "coordinates": self.metadata.coordinates,
            "shift_ns": self.shift_ns,
            "offset_ns": self.offset_ns,
            "processes": [[new, old] for old, new in self.pids.items()],
            "tracks": [
                [self.pids[old[0]], new[1], *old] for new, old in self.tracks.origins.items()
            ],
            "unnamed": self.unnamed,
            "entries": {key: value.decode() for key, value in self.metadata.entries.items()},
        }

    def id_of(self, identity: Identity) -> Identity:
        """An arrow's or correlation's id, apart from those of other ranks; see `own_id`."""
        if type(identity) is int and 0 <= identity < _LARGEST_ID // self.count:
            return identity * self.count + self.number
        kind = "n" if type(identity) is int else "s"
        return f"{self.number}:{kind}:{identity}"


def own_id(identity: Identity, count: int) -> tuple[Identity, int]:
    """The inverse of `RankPlan.id_of`: (id in its own file, number of the rank)."""
    if isinstance(identity, int):
        return identity // count, identity % count
    number, kind, text = str(identity).split(":", 2)
    return (int(text) if kind == "n" else text), int(number)


def plan_rank(
    number: int,
    count: int,
    trace: RankedTrace,
    *,
    workers: int,
    folder: Path | None,
    on_read: Callable[[int], None] | None,
) -> RankPlan:
    """Read a rank's trace once and decide on its numbers."""
    file = Trace(trace.path, on_read=on_read)
    tracks = plan_tracks(file, workers=workers, folder=folder)
    pids: dict[Identity, int] = {}
    first = (number + 1) * _PIDS_PER_RANK
    for pid in sorted(tracks.processes, key=_process_order):
        pids[pid] = first + len(pids)
    plan = RankPlan(
        number=number,
        count=count,
        rank=trace.rank,
        path=trace.path,
        metadata=trace.metadata,
        base_ns=trace.metadata.base_time_ns,
        first_ns=tracks.first_ns,
        tracks=tracks,
        pids=pids,
    )
    plan.unnamed = [text.decode() for text in tracks.process_events]
    _name(plan)
    return plan


def _process_order(pid: Identity) -> tuple[bool, int, str]:
    """Real processes first: Perfetto takes a rank's lowest number for its main process."""
    return (not isinstance(pid, int), -(pid if isinstance(pid, int) else 0), str(pid))


def _name(plan: RankPlan) -> None:
    where = " ".join(f"{k}{v}" for k, v in plan.metadata.coordinates.items() if k in "tp pp dp")
    title = f"rank {plan.rank}" + (f" ({where})" if where else "")
    active = {track[0] for track in plan.tracks.active}
    for old, new in plan.pids.items():
        if old not in active:
            continue
        what = plan.tracks.process_kind(old)
        order = plan.number * _PIDS_PER_RANK + new % _PIDS_PER_RANK
        if not isinstance(old, int) or old < 0:
            # The profiler's own rows go below all ranks.
            order += plan.count * _PIDS_PER_RANK
        for kind, args in (
            ("process_name", {"name": f"{title} {what}".strip()}),
            ("process_labels", {"labels": what}),
            ("process_sort_index", {"sort_index": order}),
        ):
            event = {"name": kind, "ph": "M", "pid": new, "tid": 0, "args": args}
            plan.names.append(json.dumps(event).encode())
    for text in plan.tracks.metadata:
        event = json.loads(text)
        if not event["name"].startswith("process"):
            pid, _ = plan.tracks.origins[event["pid"], event["tid"]]
            event["pid"] = plan.pids[pid]
            plan.names.append(json.dumps(event).encode())


_IDS = (
    rb'"pid": (?P<pid>\d+)(?=[,}\s])'
    rb'|"ph": "(?P<phase>[sft])", "id": (?P<id>\d+)(?=[,}\s])'
    rb'|"(?P<key>correlation|External id)": (?P<link>\d+)(?=[,}\s])'
)
_NUMBERS = re.compile(_IDS)
_NUMBERS_AND_TIMES = re.compile(_IDS + rb'|"ts": (?P<ts>\d+(?:\.\d+)?)(?=[,}\s])')
"""Numbers that change. A quote inside a string is escaped, so none of this is part of a name."""


class BlockMerger:
    """Rewrite a block's events with the numbers of a plan; returns (text, events)."""

    def __init__(self, plan: RankPlan) -> None:
        self.plan = plan
        self._shift = plan.shift_ns
        self._pids = {
            str(old).encode(): b'"pid": %d' % new
            for old, new in plan.pids.items()
            if type(old) is int and old >= 0
        }

    def __call__(self, block: EventBlock[SlimEvent]) -> tuple[bytes, int]:
        moved = self.plan.tracks.part(block.offset)
        renamed = self.plan.tracks.renamed
        anchors: dict[Track, tuple[object, Track]] = {}
        plain: list[bytes] = []
        texts: list[bytes] = []
        flows = 0
        for index, (event, inner) in enumerate(zip(block.events, block.inner_texts, strict=True)):
            own = (event.pid, event.tid)
            track = moved.get(index)
            if track:
                anchors[own] = (event.ts, track)
            elif event.ph in FLOW_PHASES:
                time, anchored = anchors.get(own, (None, None))
                track = anchored if time == event.ts else None
            elif event.ph == "M" and (event.name.startswith("process_") or not fits_perfetto(own)):
                # `merge` names these itself; what it leaves out is in the metadata.
                continue
            if track or own in renamed or type(event.pid) is not int:
                texts.append(self._rewrite(event, b"{%b}" % inner, track))
            else:
                plain.append(inner)
                flows += event.ph in FLOW_PHASES
        joined = self._rewrite_together(plain, flows)
        if joined is None:
            return self._one_by_one(block, moved)
        if texts:
            joined = joined + b",\n  " + join(texts) if joined else join(texts)
        return joined, len(plain) + len(texts)

    def _rewrite_together(self, plain: list[bytes], flows: int) -> bytes | None:
        """Many events at once; None if they are not written as Kineto writes them."""
        seen = {"pid": 0, "id": 0, "link": 0, "ts": 0}
        pids, shift = self._pids, self._shift
        count, number = self.plan.count, self.plan.number
        limit = _LARGEST_ID // count

        def new(match: re.Match[bytes]) -> bytes:
            kind = match.lastgroup
            assert kind is not None
            seen[kind] += 1
            if kind == "pid":
                return pids[match[1]]
            if kind == "ts":
                ns = ns_of_text(match["ts"].decode())
                return match[0] if ns is None else b'"ts": ' + text_of_ns(ns + shift).encode()
            value = int(match[kind])
            changed = (
                b"%d" % (value * count + number)
                if value < limit
                else json.dumps(self.plan.id_of(value)).encode()
            )
            if kind == "id":
                return b'"ph": "%b", "id": %b' % (match["phase"], changed)
            return b'"%b": %b' % (match["key"], changed)

        pattern = _NUMBERS_AND_TIMES if shift else _NUMBERS
        text = pattern.sub(new, join_inner(plain))
        whole = seen["pid"] == len(plain) and seen["id"] == flows
        return text if whole and (not shift or seen["ts"] == len(plain)) else None

    def _one_by_one(
        self, block: EventBlock[SlimEvent], moved: dict[int, Track]
    ) -> tuple[bytes, int]:
        anchors: dict[Track, tuple[object, Track | None]] = {}
        texts = []
        for index, (event, text) in enumerate(zip(block.events, block.texts, strict=True)):
            track: Track | None = None
            own = (event.pid, event.tid)
            if event.ph == "X":
                track = moved.get(index)
                anchors[own] = (event.ts, track)
            elif event.ph in FLOW_PHASES:
                time, anchored = anchors.get(own, (None, None))
                track = anchored if time == event.ts else None
            elif event.ph == "M" and (event.name.startswith("process_") or not fits_perfetto(own)):
                continue
            texts.append(self._rewrite(event, text, track))
        return join(texts), len(texts)

    def _rewrite(self, event: SlimEvent, text: bytes, track: Track | None) -> bytes:
        plan = self.plan
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        entries = {key: bytes(value) for key, value in raw.items()}
        own = (event.pid, event.tid)
        _, tid = track or plan.tracks.renamed.get(own, own)
        if "pid" in entries:
            entries["pid"] = json.dumps(plan.pids.get(event.pid, event.pid)).encode()
        if "tid" in entries and tid != event.tid:
            entries["tid"] = json.dumps(tid).encode()
        if event.id is not None:
            entries["id"] = json.dumps(plan.id_of(event.id)).encode()
        if self._shift and "ts" in entries:
            ns = ns_of_text(entries["ts"].decode())
            if ns is not None:
                entries["ts"] = text_of_ns(ns + self._shift).encode()
        if event.args is not None and "args" in entries:
            entries["args"] = self._rewrite_args(entries["args"])
        return join_object(entries)

    def _rewrite_args(self, text: bytes) -> bytes:
        if not any(key.encode() in text for key in LINKING_IDS):
            return text
        args = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        entries = {key: bytes(value) for key, value in args.items()}
        for key in LINKING_IDS:
            value = entries.get(key)
            if value is not None and value.isdigit():
                entries[key] = json.dumps(self.plan.id_of(int(value))).encode()
        return join_object(entries)
