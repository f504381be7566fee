# SPDX-License-Identifier: Apache-2.0
"""The part of `slim` that looks at one block: which of its events stay, as which text."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.columns.block_times import block_times
from megatron.torch_trace.format.categories import category
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.format.tracks import Track as Track
from megatron.torch_trace.reader import EventBlock, SlimEvent
from megatron.torch_trace.reader.event import BareEvent, Identity
from megatron.torch_trace.rewrite.arrow_ends import Ids, ends_of, flow_number
from megatron.torch_trace.rewrite.category_totals import Account
from megatron.torch_trace.rewrite.event_fields import entries_of, on_track, renamed
from megatron.torch_trace.rewrite.event_kinds import BlockKinds, KindTable
from megatron.torch_trace.rewrite.selection import Selection, join_object
from megatron.torch_trace.rewrite.slim.pending_events import Arrows, Gate, Waiting
from megatron.torch_trace.rewrite.tracks.arrows import Anchors
from megatron.torch_trace.rewrite.tracks.track_plan import TrackPlan

Ranges = tuple[tuple[int, int], ...]


@dataclass(slots=True)
class SlimPart:
    """What is left of one block."""

    text: bytes = b""
    waiting: list[Waiting] = field(default_factory=list)
    arrow_ends: list[tuple[str, str, Ids]] = field(default_factory=list)
    arrows: bytes = b""
    before: Account = field(default_factory=dict)
    after: Account = field(default_factory=dict)
    launches: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    streams: set[int] = field(default_factory=set)


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
        self.kinds = KindTable(selection)

    @property
    def has_times(self) -> bool:
        """Whether the clock has a say."""
        return bool(self.ranges or self.steps or self.selection.min_dur_ns)

    @property
    def event_kind(self) -> type[Any]:
        """What of an event must be decoded to decide on it; the less, the faster."""
        by_event = self.selection.streams is not None or self.pids is not None
        return SlimEvent if self.has_times or by_event else BareEvent

    def __call__(self, block: EventBlock[Any]) -> SlimPart:
        return _BlockPass(self, block).run()


class _BlockPass:
    """Decide with one number per kind of event and arrays; look only at events that need it."""

    def __init__(self, slimmer: BlockSlimmer, block: EventBlock[Any]) -> None:
        self.slimmer = slimmer
        self.selection = slimmer.selection
        self.block = block
        self.events = block.events
        self.texts = block.event_texts
        self.part = SlimPart()
        self.moved = slimmer.plan.moves.of(block.offset) if slimmer.plan else {}
        self.clipped = slimmer.plan.clipped.get(block.offset, {}) if slimmer.plan else {}
        self.gates: dict[int, Gate] = {}

    def run(self) -> SlimPart:
        self.kinds = BlockKinds(self.events, self.slimmer.kinds)
        kept = self._kept()
        is_flow = self.kinds.where("is_flow")
        if self.slimmer.steps:
            self._find_gates(kept)
        new = self._changed(kept)
        arrows = self._arrows_that_stay(kept, kept & is_flow, new)
        self._pack_arrows(arrows, new)
        gated = [index for index in self.gates if kept[index]]
        for index in gated:
            text = self._text(index, new)
            name = self.kinds.of(index).name
            self.part.waiting.append(Waiting(b"{%b}" % text, name, self.gates[index], None))
        kept[is_flow] = False
        kept[gated] = False
        self._write(kept, new)
        return self.part

    def _kept(self) -> NDArray[np.bool_]:
        """Everything but conditions on launches, and arrows' on their slices."""
        slimmer, selection, kinds = self.slimmer, self.selection, self.kinds
        count = len(self.events)
        kept, free = kinds.where("kept"), kinds.where("is_metadata")
        # An arrow goes with its slice; the clock decides only if it has none.
        arrow = kinds.where("is_flow")
        self.in_range = self.in_steps = self.begins = np.ones(count, dtype=bool)
        if slimmer.has_times:
            ts, dur = block_times(self.block)
            for index, ns in self.clipped.items():
                dur[index] = ns
            absent = dur == NO_TIME
            ends = ts + np.where(absent, 0, np.maximum(dur, 0))
            if selection.min_dur_ns:
                stays = absent | kinds.where("is_annotation")
                kept &= stays | (dur >= selection.min_dur_ns)
            if slimmer.ranges:
                self.in_range = free | _overlaps(ts, ends, slimmer.ranges)
                kept &= self.in_range | arrow
            if slimmer.steps:
                self.in_steps = free | _overlaps(ts, ends, slimmer.steps)
                self.begins = _overlaps(ts, ts, slimmer.steps)
        if selection.streams is not None:
            for index in np.flatnonzero(kinds.where("is_gpu")).tolist():
                args = self.events[index].args
                stream = args.stream if args else None
                if stream is not None:
                    self.part.streams.add(stream)
                if stream not in selection.streams:
                    kept[index] = False
        if slimmer.pids is not None:
            kept &= np.array([event.pid in slimmer.pids for event in self.events], dtype=bool)
        return kept

    def _find_gates(self, kept: NDArray[np.bool_]) -> None:
        """Note what was launched inside the steps, and the conditions on what was launched."""
        launches: dict[str, tuple[list[int], list[int]]] = {
            "correlation": ([], []),
            "external id": ([], []),
        }
        linked = self.kinds.where("is_gpu", "is_launch", "is_annotation")
        for index in np.flatnonzero(linked).tolist():
            kind, args = self.kinds.of(index), self.events[index].args
            if args is None:
                continue
            space = "external id" if kind.is_annotation else "correlation"
            number = args.external_id if kind.is_annotation else args.correlation
            if number is None or number < 0:
                continue
            if kind.is_gpu or kind.name == "gpu_user_annotation":
                self.gates[index] = Gate(space, number, bool(self.in_steps[index]))
                continue
            known, inside = launches[space]
            known.append(number)
            if self.begins[index]:
                inside.append(number)
        self.part.launches = launches
        by_clock = ~self.kinds.where("is_flow")
        by_clock[list(self.gates)] = False
        kept &= self.in_steps | ~by_clock

    def _changed(self, kept: NDArray[np.bool_]) -> dict[int, bytes]:
        """Index -> new text without braces, of the events that change; arrows not included."""
        plan = self.slimmer.plan
        new = plan.changed(self.block.offset, self.texts, self.moved) if plan else {}
        if self.selection.max_name:
            for index in np.flatnonzero(kept).tolist():
                event = self.events[index]
                if len(event.name) > self.selection.max_name and event.ph != "M":
                    text = self._text(index, new)
                    new[index] = renamed(text, event.name, self.selection.max_name)
        if self.selection.rewrites_args:
            for index in np.flatnonzero(kept).tolist():
                text = self._text(index, new)
                if self.events[index].ph == "X" and b'"args"' in text:
                    entries = entries_of(text)
                    if "args" in entries:
                        entries["args"] = self.selection.slim_args(entries["args"])
                        new[index] = join_object(entries)[1:-1]
        return new

    def _arrows_that_stay(
        self, kept: NDArray[np.bool_], flows: NDArray[np.bool_], new: dict[int, bytes]
    ) -> list[int]:
        """Ends of arrows whose slices stay; those that depend on a launch are put to wait."""
        indices = np.flatnonzero(flows)
        anchors = Anchors(self.block, self.kinds.where("is_slice"))
        if self.slimmer.ranges or self.slimmer.steps:
            stay, unclear = [], indices.tolist()
        else:
            look = anchors.unclear(indices, kept, self.moved)
            stay, unclear = indices[~look].tolist(), indices[look].tolist()
        for index in unclear:
            event = self.events[index]
            anchor = anchors.of(index)
            if anchor is None:
                if not (self.in_range[index] and self.in_steps[index]):
                    continue
            elif not kept[anchor]:
                continue
            elif anchor in self.moved:
                new[index] = on_track(self._text(index, new), self.moved[anchor])
            if anchor in self.gates:
                name = category(event.cat)
                flow = (f"{name}\0{event.name}", flow_number(event.id), event.ph)
                text = b"{%b}" % self._text(index, new)
                self.part.waiting.append(Waiting(text, name, self.gates[anchor], flow))
            else:
                stay.append(index)
        return sorted(stay)

    def _pack_arrows(self, indices: list[int], new: dict[int, bytes]) -> None:
        """Note which ends of arrows stay, and pickle their texts: they are unpickled at the end."""
        found: dict[str, Arrows] = {}
        for ends in ends_of(self.events, np.array(indices, dtype=np.int32)):
            self.part.arrow_ends.append((ends.kind, ends.phase, ends.ids))
            arrows = found.setdefault(ends.kind, Arrows(ends.category))
            arrows.add(ends.ids, self.texts.each(ends.indices.astype(np.int64), new))
        if found:
            self.part.arrows = pickle.dumps(found, protocol=5)

    def _text(self, index: int, new: dict[int, bytes]) -> bytes:
        return new[index] if index in new else self.texts[index]

    def _write(self, kept: NDArray[np.bool_], new: dict[int, bytes]) -> None:
        sizes = self.texts.sizes
        self.kinds.add_to(self.part.before, sizes)
        for index, text in new.items():
            sizes[index] = len(text) + 2
        self.kinds.add_to(self.part.after, sizes, kept)
        self.part.text = self.texts.chosen(kept, new)


def _overlaps(
    starts: NDArray[np.int64], ends: NDArray[np.int64], ranges: Ranges
) -> NDArray[np.bool_]:
    """Whether [start, end) meets any range; an event without duration is its start."""
    found = np.zeros(len(starts), dtype=bool)
    for low, high in ranges:
        found |= (starts < high) & ((ends > low) | (starts >= low))
    return found
