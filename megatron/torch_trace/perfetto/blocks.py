# SPDX-License-Identifier: Apache-2.0
"""From one block of events to the columns that a timeline needs; runs in the reading processes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.columns.arguments import SlimEventWithArgs
from megatron.torch_trace.columns.block_activity import BlockColumns, LookForActivity
from megatron.torch_trace.columns.block_slices import Codes, Track
from megatron.torch_trace.columns.block_times import block_times
from megatron.torch_trace.format.categories import GPU_WORK, LAUNCHES, category
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.perfetto.arguments import SHAPES, ArgumentReader, ArgumentRows
from megatron.torch_trace.reader import EventBlock
from megatron.torch_trace.reader.event import Identity, decode_loosely
from megatron.torch_trace.rewrite.event_kinds import coded

Ints = NDArray[np.int64]

_INSTANTS = frozenset({"i", "I", "R"})
_ARROWS = {"s": False, "t": True, "f": True}
_PLACED = GPU_WORK | LAUNCHES | {"user_annotation"}
_COMMUNICATION = "record_param_comms"
_MEMORY = "[memory]"
_LARGEST_ID = 1 << 62
_CPU = 0
"""torch's DeviceType of the CPU, whose allocations are no GPU's memory."""


class TimelineEvent(SlimEventWithArgs, gc=False):
    """An event whose arguments are still text, with the id of an arrow."""

    id: Identity = None


class MemoryArgs(msgspec.Struct, gc=False):
    """What the allocator says at an allocation."""

    allocated: int | None = msgspec.field(default=None, name="Total Allocated")
    reserved: int | None = msgspec.field(default=None, name="Total Reserved")
    device: int | None = msgspec.field(default=None, name="Device Id")
    device_type: int | None = msgspec.field(default=None, name="Device Type")


class Kind(NamedTuple):
    """All events of one phase and category.

    Args:
        is_placed: the analysis needs all of them; is_operator: only some.
    """

    phase: str
    category: str
    is_shown: bool
    is_instant: bool
    is_arrow: bool
    is_finish: bool
    is_placed: bool
    is_operator: bool

    @classmethod
    def of(cls, key: str) -> Kind:
        """From phase and category, which a zero byte separates."""
        phase, _, written = key.partition("\0")
        name, instant = category(written), phase in _INSTANTS
        return cls(
            phase,
            name,
            is_shown=instant or phase == "X",
            is_instant=instant,
            is_arrow=phase in _ARROWS,
            is_finish=_ARROWS.get(phase, False),
            is_placed=phase == "X" and name in _PLACED,
            is_operator=phase == "X" and name == "cpu_op",
        )


@dataclass(slots=True)
class BlockEvents:
    """What one block contributes; codes are places in the block's own lists.

    Args:
        events: ts, dur (-1 stays), name, track, category, instant: one entry for each slice and
            instant.
        arrows: ts, track, category, id, end (0 where it starts, 1 where it ends). An id that is
            text is -1 minus its place in `ids`.
        memory: ts, device, allocated, reserved: totals in bytes.
        values: "name", "track", "category", "text" -> what its codes stand for.
        arguments: rows are events of this block.
        activity: the analysis' columns of the block.
        left_out: phase -> events that a timeline of slices, instants and arrows cannot hold.
        without_start: slices and instants without a time.
    """

    events: dict[str, Ints]
    arrows: dict[str, Ints]
    memory: dict[str, Ints]
    values: dict[str, list[Any]]
    arguments: list[ArgumentRows]
    activity: BlockColumns
    thread_names: dict[Track, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    without_start: int = 0


@dataclass(slots=True)
class SomeEvents:
    """Some of a block's events, in the form in which the analysis takes a block."""

    block: EventBlock[TimelineEvent]
    rows: list[int]
    events: list[TimelineEvent]
    text: bytes | None = None

    @property
    def texts(self) -> list[bytes]:
        return [self.block.texts[row] for row in self.rows]


class LookForTimeline:
    """The function of `Trace.map`: one block in, its columns out.

    Args:
        args: which arguments to keep, see `arguments`.
    """

    def __init__(self, args: str) -> None:
        self._reader = ArgumentReader(args)
        self._look = LookForActivity()

    def __call__(self, block: EventBlock[TimelineEvent]) -> BlockEvents:
        start, dur = block_times(block)
        dur[dur == NO_TIME] = 0
        kinds, tracks, code, track = _coded_kinds_and_tracks(block.events)
        timed = start != NO_TIME
        shown = _having(kinds, "is_shown")[code]
        rows = np.flatnonzero(shown & timed)
        events = [block.events[row] for row in rows.tolist()]
        ends = np.flatnonzero(_having(kinds, "is_arrow")[code] & timed)
        arrows = [block.events[row] for row in ends.tolist()]
        names, name = coded([event.name for event in events])
        strings, ids = Codes(), Codes()
        instant = _having(kinds, "is_instant")[code[rows]].astype(np.int64)
        columns = {
            "ts": start[rows],
            "dur": np.where(instant, 0, dur[rows]),
            "name": name.astype(np.int64),
            "track": track[rows],
            "category": code[rows],
            "instant": instant,
        }
        found = BlockEvents(
            events=columns,
            arrows={
                "ts": start[ends],
                "track": track[ends],
                "category": code[ends],
                "id": _ids([event.id for event in arrows], ids),
                "end": _having(kinds, "is_finish")[code[ends]].astype(np.int64),
            },
            memory=_memory(events, columns),
            arguments=self._arguments(block, events, kinds, columns["category"], strings),
            activity=self._activity(block, events, rows, kinds, columns["category"]),
            without_start=int((shown & ~timed).sum()),
            values={},
        )
        found.values = {
            "name": names,
            "track": tracks,
            "category": [kind.category for kind in kinds],
            "text": list(strings.codes),
            "id": list(ids.codes),
        }
        _note_the_rest(block, kinds, code, found)
        return found

    def _arguments(
        self,
        block: EventBlock[TimelineEvent],
        events: list[TimelineEvent],
        kinds: list[Kind],
        code: Ints,
        strings: Codes,
    ) -> list[ArgumentRows]:
        has_shapes = block.text is None or SHAPES in block.text
        found: list[ArgumentRows] = []
        for number, kind in enumerate(kinds):
            if kind.is_shown:
                places: list[int] = np.flatnonzero(code == number).tolist()
                texts, rows = self._reader.chosen(
                    kind.category, events, places, has_shapes=has_shapes
                )
                if rows:
                    found += self._reader.read(texts, rows, strings)
        return found

    def _activity(
        self,
        block: EventBlock[TimelineEvent],
        events: list[TimelineEvent],
        rows: NDArray[np.intp],
        kinds: list[Kind],
        code: Ints,
    ) -> BlockColumns:
        """What the analysis needs to place communication: no other operators."""
        mine = _having(kinds, "is_placed")[code]
        operators = np.flatnonzero(_having(kinds, "is_operator")[code]).tolist()
        mine[[row for row in operators if events[row].name == _COMMUNICATION]] = True
        places: list[int] = np.flatnonzero(mine).tolist()
        part = SomeEvents(block, rows[places].tolist(), [events[place] for place in places])
        return self._look(cast(EventBlock[SlimEventWithArgs], part))


def _coded_kinds_and_tracks(
    events: list[TimelineEvent],
) -> tuple[list[Kind], list[Track], Ints, Ints]:
    """Kinds and tracks that there are, and of each event its place in both lists."""
    # One string for both, not two tuples: this is done for every event.
    keys, code = coded([f"{e.ph}\0{e.cat}\0{e.pid!r}\0{e.tid!r}" for e in events])
    first = np.zeros(len(keys), dtype=np.intp)
    first[code[::-1]] = np.arange(len(events))[::-1]
    examples = [events[row] for row in first.tolist()]
    kinds, kind = coded([f"{event.ph}\0{event.cat}" for event in examples])
    tracks, track = coded([(event.pid, event.tid) for event in examples])
    return (
        [Kind.of(one) for one in kinds],
        tracks,
        kind.astype(np.int64)[code],
        track.astype(np.int64)[code],
    )


def _having(kinds: list[Kind], quality: str) -> NDArray[np.bool_]:
    return np.array([getattr(kind, quality) for kind in kinds], dtype=bool)


def _ids(values: list[Identity], ids: Codes) -> Ints:
    fits = [type(value) is int and 0 <= value < _LARGEST_ID for value in values]
    if not all(fits):
        texts = ids.of([str(value) for value in values]).tolist()
        values = [
            value if fit else -1 - text
            for value, fit, text in zip(values, fits, texts, strict=True)
        ]
    return np.array(values, dtype=np.int64)


def _memory(events: list[TimelineEvent], columns: dict[str, Ints]) -> dict[str, Ints]:
    rows, totals = [], []
    for row in np.flatnonzero(columns["instant"]).tolist():
        if events[row].name == _MEMORY:
            args = decode_loosely(bytes(events[row].args) or b"{}", MemoryArgs)
            if args.device_type != _CPU and args.allocated is not None:
                rows.append(row)
                totals.append((args.device or 0, args.allocated, args.reserved or 0))
    table = np.array(totals, dtype=np.int64).reshape(-1, 3)
    return {
        "ts": columns["ts"][rows],
        "device": table[:, 0],
        "allocated": table[:, 1],
        "reserved": table[:, 2],
    }


def _note_the_rest(
    block: EventBlock[TimelineEvent],
    kinds: list[Kind],
    code: NDArray[np.intp],
    found: BlockEvents,
) -> None:
    for number, kind in enumerate(kinds):
        if kind.is_shown or kind.is_arrow:
            continue
        rows: list[int] = np.flatnonzero(code == number).tolist()
        if kind.phase != "M":
            found.left_out[kind.phase] += len(rows)
            continue
        for row in rows:
            event = block.events[row]
            if event.name == "thread_name":
                args = json.loads(bytes(event.args) or b"{}")
                name = args.get("name") if isinstance(args, dict) else None
                if isinstance(name, str):
                    found.thread_names[event.pid, event.tid] = name.strip()
