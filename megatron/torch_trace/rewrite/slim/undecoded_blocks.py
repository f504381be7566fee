# SPDX-License-Identifier: Apache-2.0
"""What `slim` need not decode twice, where it keeps everything but moves some of it.

A first reading decides which events move, and sees which arrows have both their ends. After it the
indices of all that changes are known, and in most blocks of most traces that is little.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megatron.torch_trace.files.nameless import NamelessFile
from megatron.torch_trace.format.categories import FLOW_PHASES
from megatron.torch_trace.reader import EventBlock, Trace
from megatron.torch_trace.reader.cutter import RawBlock
from megatron.torch_trace.reader.event import PlainEvent
from megatron.torch_trace.reader.texts import Texts
from megatron.torch_trace.rewrite.arrow_ends import ArrowEnds, ArrowIds, Indices, among, ends_of
from megatron.torch_trace.rewrite.category_totals import Account, count
from megatron.torch_trace.rewrite.event_kinds import Keyed, KindTable
from megatron.torch_trace.rewrite.selection import Selection
from megatron.torch_trace.rewrite.slim.block_slim import SlimPart
from megatron.torch_trace.rewrite.tracks.arrows import arrows_beside, track_event
from megatron.torch_trace.rewrite.tracks.block_slices import BlockSlices, keyed, slices_of
from megatron.torch_trace.rewrite.tracks.track_plan import TrackPlan, TrackPlanner

_FEW_CHANGES = 256
"""In a block with more changed events, finding each costs more than decoding all."""
_KINDS = KindTable(Selection())


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
        undecoded: blocks that need not be decoded again.
        others: how many other blocks there are.
        ids: of all ends of arrows.
        account: events and bytes by category, of all blocks.
    """

    plan: TrackPlan
    undecoded: UndecodedBlocks
    others: int
    ids: ArrowIds
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
    ids = ArrowIds()
    arrows: NamelessFile[tuple[int, list[ArrowEnds]]] = NamelessFile(folder)
    with TrackPlanner(folder) as planner, arrows:
        for look in trace.map(look_at, PlainEvent, workers=workers, small_results=True):
            blocks += 1
            if look.whole:
                numbers[look.slices.block] = look.events
            for name, (events, size) in look.account.items():
                count(account, name, size, events)
            for ends in look.arrows:
                ids.add(ends.kind, ends.phase, ends.ids)
            if look.arrows:
                arrows.add((look.slices.block, look.arrows))
            planner.add(look.slices)
        plan = planner.plan(clip=True)
        undecoded = UndecodedBlocks(plan, numbers, _lost(arrows, ids))
        return FirstReading(plan, undecoded, blocks - len(undecoded), ids, account)


class UndecodedBlocks:
    """Blocks of which only indices are needed: the text that stays of each, without decoding it.

    Args:
        plan: which events move.
        events: offset of a block that is strict JSON -> how many events it holds.
        lost: (block, category, indices) of events that go.
    """

    def __init__(
        self, plan: TrackPlan, events: dict[int, int], lost: Iterable[tuple[int, str, Indices]]
    ) -> None:
        self._plan = plan
        self._events = {
            block: number
            for block, number in events.items()
            if plan.changes_in(block) <= _FEW_CHANGES
        }
        self._lost: dict[int, list[tuple[str, Indices]]] = {}
        for block, name, indices in lost:
            if block in self._events:
                self._lost.setdefault(block, []).append((name, indices))

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
        for name, indices in lost:
            kept[indices] = False
            count(part.after, name, -int(sizes[indices].sum()), -len(indices))
        moved = self._plan.moves.of(raw.offset)
        moved |= arrows_beside(texts, moved)
        new = self._plan.changed(raw.offset, texts, moved)
        for index, text in new.items():
            if kept[index]:
                event = track_event(texts, index)
                name = _KINDS.kind((event.ph, event.cat)).name
                count(part.after, name, len(text) + 2 - int(sizes[index]), 0)
        part.text = texts.chosen(kept, new)
        return part


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
    sizes = np.bincount(code, weights=block.event_texts.sizes, minlength=len(keys)).tolist()
    for (phase, written, _, _), number, size in zip(keys, numbers, sizes, strict=True):
        count(account, _KINDS.kind((phase, written)).name, int(size), number)
    return account


def _arrows_of(block: EventBlock[PlainEvent], events: Keyed) -> list[ArrowEnds]:
    keys, code = events
    is_flow = np.array([phase in FLOW_PHASES for phase, *_ in keys], dtype=bool)
    return ends_of(block.events, np.flatnonzero(is_flow[code]).astype(np.int32))


def _lost(
    arrows: NamelessFile[tuple[int, list[ArrowEnds]]], ids: ArrowIds
) -> Iterator[tuple[int, str, Indices]]:
    """(block, category, indices) of the ends whose arrow has no other end."""
    whole = ids.whole()
    for block, all_ends in arrows:
        for ends in all_ends:
            stays = among(ends.ids, whole[ends.kind])
            if not stays.all():
                yield block, ends.category, ends.indices[~stays]
