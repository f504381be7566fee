# SPDX-License-Identifier: Apache-2.0
"""The part of `slim` that looks at one block: which of its events stay, as which text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.filters import Selection, join_object
from megatron.torch_trace.reader import EventBlock, SlimEvent
from megatron.torch_trace.reader.event import Identity
from megatron.torch_trace.spool import Gate, Waiting, flow_number
from megatron.torch_trace.times import NO_TIME, block_times
from megatron.torch_trace.tracks import TrackPlan
from megatron.torch_trace.vocabulary import ANNOTATIONS, FLOW_PHASES, GPU_WORK, LAUNCHES, category
from megatron.torch_trace.writer import join

Ranges = tuple[tuple[int, int], ...]
Track = tuple[Identity, Identity]
Account = dict[str, list[int]]
"""Category -> [events, bytes]."""


@dataclass(slots=True)
class SlimPart:
    """What is left of one block."""

    text: bytes = b""
    waiting: list[Waiting] = field(default_factory=list)
    before: Account = field(default_factory=dict)
    after: Account = field(default_factory=dict)
    launches: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    damaged_times: int = 0


class _Anchor(NamedTuple):
    """The slice that an arrow at the same time on the same track belongs to."""

    ts: object
    kept: bool
    gate: Gate | None
    track: Track | None


class _Kind(NamedTuple):
    name: str
    kept: bool
    is_gpu: bool
    is_launch: bool
    is_annotation: bool


class BlockSlimmer:
    """Decide on the events of any block; has no state between blocks.

    Args:
        selection: what to keep.
        ranges: of time, in ns as in the file, to which the clock must agree; None for all.
        steps: ranges of time in which a launch or annotation must begin; None for all.
        pids: processes to keep; None for all.
        plan: new tracks, or None.
    """

    def __init__(
        self,
        selection: Selection,
        ranges: Ranges | None = None,
        steps: Ranges | None = None,
        pids: frozenset[Identity] | None = None,
        plan: TrackPlan | None = None,
    ) -> None:
        self.selection = selection
        self.ranges = ranges
        self.steps = steps
        self.pids = pids
        self.plan = plan
        self._kinds: dict[str, _Kind] = {}
        self._flows: dict[str, bool] = {}

    def __call__(self, block: EventBlock[SlimEvent]) -> SlimPart:
        return _BlockPass(self, block).run()

    def kind(self, written: str) -> _Kind:
        if written not in self._kinds:
            name = category(written)
            self._kinds[written] = _Kind(
                name,
                self.selection.keeps_category(name),
                name in GPU_WORK,
                name in LAUNCHES,
                name in ANNOTATIONS,
            )
        return self._kinds[written]

    def keeps_flow(self, name: str) -> bool:
        if name not in self._flows:
            self._flows[name] = self.selection.keeps_flow(name)
        return self._flows[name]


class _BlockPass:
    def __init__(self, slimmer: BlockSlimmer, block: EventBlock[SlimEvent]) -> None:
        self.slimmer = slimmer
        self.selection = slimmer.selection
        self.block = block
        self.part = SlimPart()
        self.moved = slimmer.plan.part(block.offset) if slimmer.plan else {}
        self.renamed = slimmer.plan.renamed if slimmer.plan else {}
        self.anchors: dict[Track, _Anchor] = {}
        self.known: dict[str, list[int]] = {"correlation": [], "external id": []}
        self.inside: dict[str, list[int]] = {"correlation": [], "external id": []}
        self._read_times()

    def _read_times(self) -> None:
        slimmer, count = self.slimmer, len(self.block.events)
        everything = [True] * count
        self.in_range: Sequence[bool] = everything
        self.in_steps: Sequence[bool] = everything
        self.begins: Sequence[bool] = everything
        self.long: Sequence[bool] = everything
        self.negative: Sequence[bool] = ()
        needs_times = slimmer.ranges or slimmer.steps or self.selection.min_dur_ns or slimmer.plan
        if not needs_times:
            return
        ts, dur = block_times(self.block)
        absent = dur == NO_TIME
        if slimmer.plan:
            self.negative = (~absent & (dur < 0)).tolist()
        if self.selection.min_dur_ns:
            self.long = (absent | (dur >= self.selection.min_dur_ns)).tolist()
        ends = ts + np.where(absent, 0, np.maximum(dur, 0))
        if slimmer.ranges:
            self.in_range = _overlaps(ts, ends, slimmer.ranges).tolist()
        if slimmer.steps:
            self.in_steps = _overlaps(ts, ends, slimmer.steps).tolist()
            self.begins = _overlaps(ts, ts, slimmer.steps).tolist()

    def run(self) -> SlimPart:
        kept: list[bytes] = []
        before, after = self.part.before, self.part.after
        pids = self.slimmer.pids
        for index, (event, text) in enumerate(
            zip(self.block.events, self.block.texts, strict=True)
        ):
            phase = event.ph
            if pids is not None and event.pid not in pids:
                name, new = "", None
            elif phase == "X":
                kind = self.slimmer.kind(event.cat)
                name = kind.name
                new = self._slice(index, event, text, kind)
            elif phase in FLOW_PHASES:
                name = category(event.cat)
                new = self._flow(index, event, text, name)
            elif phase == "M":
                name = "metadata"
                new = self._renamed(event, text)
            else:
                name = category(event.cat)
                new = self._instant(index, event, text, name)
            _count(before, name, len(text))
            if new is not None:
                kept.append(new)
                _count(after, name, len(new))
        self.part.text = join(kept)
        if self.slimmer.steps:
            self.part.launches = {
                space: (self.known[space], self.inside[space]) for space in self.known
            }
        return self.part

    def _slice(self, index: int, event: SlimEvent, text: bytes, kind: _Kind) -> bytes | None:
        gate = self._gate(index, event, kind) if self.slimmer.steps else None
        args = event.args
        kept = (
            kind.kept
            and self.in_range[index]
            and (self.long[index] or kind.is_annotation)
            and (gate is not None or self.in_steps[index])
            and not (
                self.selection.streams is not None
                and kind.is_gpu
                and (args is None or args.stream not in self.selection.streams)
            )
        )
        track = self.moved.get(index)
        self.anchors[event.pid, event.tid] = _Anchor(event.ts, kept, gate, track)
        if not kept:
            return None
        text = self._rewritten(event, text, index, track)
        if gate is None:
            return text
        self.part.waiting.append(Waiting(text, kind.name, gate, None))
        return None

    def _gate(self, index: int, event: SlimEvent, kind: _Kind) -> Gate | None:
        """Note launches; the condition on an event that something else launched."""
        args = event.args
        if args is None:
            return None
        if kind.is_gpu:
            if args.correlation is None or args.correlation < 0:
                return None
            return Gate("correlation", args.correlation, self.in_steps[index])
        if kind.name == "gpu_user_annotation":
            if args.external_id is None or args.external_id < 0:
                return None
            return Gate("external id", args.external_id, self.in_steps[index])
        space, number = "correlation", args.correlation if kind.is_launch else None
        if kind.is_annotation:
            space, number = "external id", args.external_id
        if number is not None and number >= 0:
            self.known[space].append(number)
            if self.begins[index]:
                self.inside[space].append(number)
        return None

    def _flow(self, index: int, event: SlimEvent, text: bytes, name: str) -> bytes | None:
        anchor = self.anchors.get((event.pid, event.tid))
        if anchor is not None and anchor.ts != event.ts:
            anchor = None
        if anchor is None:
            kept, gate, track = self.in_range[index] and self.in_steps[index], None, None
        else:
            kept, gate, track = anchor.kept, anchor.gate, anchor.track
        if not kept or not self.slimmer.keeps_flow(name):
            return None
        if track or self.renamed:
            text = self._placed(event, text, track)
        flow = (f"{name}\0{event.name}", flow_number(event.id), event.ph)
        self.part.waiting.append(Waiting(text, name, gate, flow))
        return None

    def _instant(self, index: int, event: SlimEvent, text: bytes, name: str) -> bytes | None:
        if name and not self.selection.keeps_category(name):
            return None
        if not (self.in_range[index] and self.in_steps[index]):
            return None
        return self._placed(event, text, None) if self.renamed else text

    def _renamed(self, event: SlimEvent, text: bytes) -> bytes:
        """Metadata of a track that got another number; its new name is written elsewhere."""
        if (event.pid, event.tid) in self.renamed and not event.name.startswith("process"):
            return self._placed(event, text, None)
        return text

    def _rewritten(self, event: SlimEvent, text: bytes, index: int, track: Track | None) -> bytes:
        if track or self.renamed:
            text = self._placed(event, text, track)
        mend = bool(self.negative) and self.negative[index]
        if mend or self.selection.rewrites_args:
            entries = _entries(text)
            if mend:
                entries["dur"] = b"0"
                self.part.damaged_times += 1
            if self.selection.rewrites_args and "args" in entries:
                entries["args"] = self.selection.slim_args(entries["args"])
            text = join_object(entries)
        return text

    def _placed(self, event: SlimEvent, text: bytes, track: Track | None) -> bytes:
        track = track or self.renamed.get((event.pid, event.tid))
        if track is None:
            return text
        entries = _entries(text)
        entries["pid"], entries["tid"] = str(track[0]).encode(), str(track[1]).encode()
        return join_object(entries)


def _entries(text: bytes) -> dict[str, bytes]:
    import msgspec

    return {k: bytes(v) for k, v in msgspec.json.decode(text, type=dict[str, msgspec.Raw]).items()}


def _overlaps(
    starts: NDArray[np.int64], ends: NDArray[np.int64], ranges: Ranges
) -> NDArray[np.bool_]:
    """Whether [start, end) meets any range; an event without duration is its start."""
    found = np.zeros(len(starts), dtype=bool)
    for low, high in ranges:
        found |= (starts < high) & ((ends > low) | (starts >= low))
    return found


def _count(account: Account, name: str, size: int) -> None:
    entry = account.get(name)
    if entry is None:
        account[name] = [1, size]
    else:
        entry[0] += 1
        entry[1] += size
