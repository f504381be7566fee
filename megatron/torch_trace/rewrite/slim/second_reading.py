# SPDX-License-Identifier: Apache-2.0
"""What `slim` need not decode twice, where it keeps everything but moves some of it.

A first reading decides which events move, and sees which arrows have both their ends. After it the
places of all that changes are known, and in most blocks of most traces that is little.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from megatron.torch_trace.format.categories import FLOW_PHASES, category
from megatron.torch_trace.reader import EventBlock, Trace
from megatron.torch_trace.reader.cutter import RawBlock
from megatron.torch_trace.reader.event import PlainEvent, decode_loosely
from megatron.torch_trace.reader.texts import Texts
from megatron.torch_trace.rewrite.category_totals import Account, count
from megatron.torch_trace.rewrite.event_kinds import KindTable, coded
from megatron.torch_trace.rewrite.selection import Selection
from megatron.torch_trace.rewrite.slim.block_slim import SlimPart
from megatron.torch_trace.rewrite.slim.pending_events import Ids, bitmap, flow_numbers
from megatron.torch_trace.rewrite.tracks.arrows import FARTHEST
from megatron.torch_trace.rewrite.tracks.block_slices import (
    BlockSlices,
    Keyed,
    Track,
    keyed,
    slices_of,
)
from megatron.torch_trace.rewrite.tracks.track_plan import TrackPlan, TrackPlanner

Places = NDArray[np.int32]

_IN_MEMORY_BYTES = 4 << 20
_FEW_CHANGES = 256
"""In a block with more changed events, finding each costs more than decoding all."""
_KINDS = KindTable(Selection())


class ArrowEnds(NamedTuple):
    """Ends of arrows of one kind and phase in one block, and their places in it."""

    kind: str
    phase: str
    ids: Ids
    places: Places


@dataclass(slots=True)
class Look:
    """What the first reading learns of one block.

    Attributes:
        events: how many there are.
        whole: it is strict JSON, and the frame does not end in it.
    """

    events: int
    slices: BlockSlices
    arrows: list[ArrowEnds]
    account: Account
    whole: bool


@dataclass(slots=True)
class FirstReading:
    """What the first reading learnt.

    Attributes:
        plan: which events move.
        settled: blocks that need not be decoded again.
        others: how many other blocks there are.
        ends: kind of arrow -> ids at which such arrows start, and at which they finish.
        account: events and bytes by category, of all blocks.
    """

    plan: TrackPlan
    settled: Settled
    others: int
    ends: dict[str, tuple[BitMap64, BitMap64]]
    account: Account


def read_first(trace: Trace, *, workers: int, folder: Path | None) -> FirstReading:
    """Read a trace of which everything will be kept but arrows with one end.

    Args:
        trace: not read yet.
        folder: where to put what does not fit into memory.
    """
    numbers: dict[int, int] = {}
    account: Account = {}
    blocks = 0
    with TrackPlanner(folder) as planner, _ArrowLedger(folder) as arrows:
        for look in trace.map(look_at, PlainEvent, workers=workers, small_results=True):
            blocks += 1
            if look.whole:
                numbers[look.slices.block] = look.events
            for name, (events, size) in look.account.items():
                count(account, name, size, events)
            arrows.add(look.slices.block, look.arrows)
            planner.add(look.slices)
        plan = planner.plan(clip=True)
        settled = Settled(plan, numbers, arrows.lost())
        return FirstReading(plan, settled, blocks - len(settled), arrows.ends, account)


class Settled:
    """Blocks of which only places are needed: the text that stays of each, without decoding it.

    Args:
        plan: which events move.
        events: offset of a block that is strict JSON -> how many events it holds.
        lost: (block, category, places) of events that go.
    """

    def __init__(
        self, plan: TrackPlan, events: dict[int, int], lost: Iterable[tuple[int, str, Places]]
    ) -> None:
        self._plan = plan
        self._events = {
            block: number
            for block, number in events.items()
            if plan.changes_in(block) <= _FEW_CHANGES
        }
        self._lost: dict[int, list[tuple[str, Places]]] = {}
        for block, name, places in lost:
            if block in self._events:
                self._lost.setdefault(block, []).append((name, places))

    def __len__(self) -> int:
        return len(self._events)

    def __call__(self, raw: RawBlock) -> SlimPart | None:
        """What is left of a block, None if it must be decoded; accounts hold only differences."""
        number = self._events.get(raw.offset)
        if number is None:
            return None
        lost = self._lost.get(raw.offset, [])
        if not lost and not self._plan.changes_in(raw.offset):
            return SlimPart(raw.text.strip())
        texts = Texts.of(raw.text, number, raw.separator)
        part, kept, sizes = SlimPart(), np.ones(number, dtype=bool), texts.sizes
        for name, places in lost:
            kept[places] = False
            count(part.after, name, -int(sizes[places].sum()), -len(places))
        moved = self._plan.moves.of(raw.offset)
        moved |= _arrows_beside(texts, moved)
        new = self._plan.changed(raw.offset, texts, moved)
        for place, text in new.items():
            if kept[place]:
                event = _event(texts, place)
                name = _KINDS.kind(f"{event.ph}\0{event.cat}").name
                count(part.after, name, len(text) + 2 - int(sizes[place]), 0)
        part.text = texts.chosen(kept, new)
        return part


def _event(texts: Texts, place: int) -> PlainEvent:
    return decode_loosely(b"{%b}" % texts[place], PlainEvent)


def _arrows_beside(texts: Texts, moved: Mapping[int, Track]) -> dict[int, Track]:
    """The ends of arrows behind slices that move, as `Anchors` finds them."""
    found: dict[int, Track] = {}
    for place, track in moved.items():
        anchor = _event(texts, place)
        if anchor.ph != "X":
            continue
        for behind in range(place + 1, min(place + 1 + FARTHEST, len(texts))):
            event = _event(texts, behind)
            if event.ph == "X":
                break
            where = (event.pid, event.tid, event.ts)
            if event.ph in FLOW_PHASES and where == (anchor.pid, anchor.tid, anchor.ts):
                found[behind] = track
    return found


def look_at(block: EventBlock[PlainEvent]) -> Look:
    """What `read_first` needs of one block."""
    events = keyed(block)
    return Look(
        len(block.events),
        slices_of(block, events=events),
        _arrows_of(block, events),
        _account_of(block, events),
        block.text is not None and block.end is None,
    )


def _account_of(block: EventBlock[PlainEvent], events: Keyed) -> Account:
    keys, code = events
    account: Account = {}
    numbers = np.bincount(code, minlength=len(keys)).tolist()
    sizes = np.bincount(code, weights=block.places.sizes, minlength=len(keys)).tolist()
    for (phase, written, _, _), number, size in zip(keys, numbers, sizes, strict=True):
        count(account, _KINDS.kind(f"{phase}\0{written}").name, int(size), number)
    return account


def _arrows_of(block: EventBlock[PlainEvent], events: Keyed) -> list[ArrowEnds]:
    keys, code = events
    is_flow = np.array([phase in FLOW_PHASES for phase, *_ in keys], dtype=bool)
    places = np.flatnonzero(is_flow[code]).astype(np.int32)
    ends = [block.events[place] for place in places.tolist()]
    ids = flow_numbers([end.id for end in ends])
    names, name_of = coded([end.name for end in ends])
    found = []
    together, kind_of = np.unique(name_of * len(keys) + code[places], return_inverse=True)
    for number, both in enumerate(together.tolist()):
        name, (phase, written, _, _) = names[both // len(keys)], keys[both % len(keys)]
        mine = kind_of == number
        found.append(ArrowEnds(f"{category(written)}\0{name}", phase, ids[mine], places[mine]))
    return found


class _ArrowLedger:
    """Ids of all arrows, and in a nameless file where each has its ends.

    Attributes:
        ends: kind of arrow -> ids at which such arrows start, and at which they finish.
    """

    def __init__(self, folder: Path | None) -> None:
        self.ends: dict[str, tuple[BitMap64, BitMap64]] = {}
        self._blocks = 0
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115
            max_size=_IN_MEMORY_BYTES, dir=None if folder is None else str(folder)
        )

    def __enter__(self) -> _ArrowLedger:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, block: int, arrows: list[ArrowEnds]) -> None:
        """Note the ends of arrows in the block at this offset."""
        for kind, phase, ids, _ in arrows:
            starts, finishes = self.ends.setdefault(kind, (BitMap64(), BitMap64()))
            if phase == "s":
                starts.update(bitmap(ids))
            elif phase == "f":
                finishes.update(bitmap(ids))
        if arrows:
            pickle.dump((block, [tuple(end) for end in arrows]), self._file, protocol=5)
            self._blocks += 1

    def lost(self) -> Iterator[tuple[int, str, Places]]:
        """(block, category, places) of the ends whose arrow has no other end."""
        whole = {kind: starts & finishes for kind, (starts, finishes) in self.ends.items()}
        self._file.seek(0)
        for _ in range(self._blocks):
            block, arrows = pickle.load(self._file)
            for kind, _, ids, places in arrows:
                if not bitmap(ids) <= whole[kind]:
                    known = whole[kind]
                    one_ended = [number not in known for number in ids.tolist()]
                    yield block, kind.partition("\0")[0], places[one_ended]
