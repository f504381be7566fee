# SPDX-License-Identifier: Apache-2.0
"""What a timeline needs of one block: slices, instants, arrows, memory, and their arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.columns.activity_tables import communication_tables
from megatron.torch_trace.columns.arguments import SlimEventWithArgs
from megatron.torch_trace.columns.builder import (
    BlockColumns,
    BlockView,
    ColumnBuilder,
    EventKind,
    Rows,
)
from megatron.torch_trace.columns.codes import Codes
from megatron.torch_trace.columns.intervals import Ints
from megatron.torch_trace.columns.thread_names import thread_names
from megatron.torch_trace.format.integer_arrays import distinct
from megatron.torch_trace.format.tracks import Identity, Track
from megatron.torch_trace.perfetto.arguments import SHAPES, ArgumentReader, ArgumentRows
from megatron.torch_trace.reader.event import decode_loosely

EVENT, ARROW = "event", "arrow"

COLUMNS: Mapping[str, tuple[str, ...]] = {
    EVENT: ("start", "dur", "name", "track", "category", "instant"),
    ARROW: ("start", "track", "category", "id", "end"),
}
CODES = ("name", "track", "category")

_INSTANTS = frozenset({"i", "I", "R"})
_ARROWS = {"s": False, "t": True, "f": True}
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


@dataclass(slots=True)
class TimelineRest:
    """What of a block is no table.

    Args:
        memory: start, device, allocated, reserved: totals in bytes.
        texts: what codes of text arguments stand for.
        ids: ids of arrows that are text: an arrow's id is -1 minus its index here.
        arguments: rows are events of this block.
        left_out: phase -> events that a timeline of slices, instants and arrows cannot hold.
    """

    memory: dict[str, Ints]
    texts: list[str]
    ids: list[str]
    arguments: list[ArgumentRows]
    thread_names: dict[Track, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)


class _Events:
    """Slices and instants; what has arguments worth keeping is remembered for the rest."""

    name = EVENT

    def __init__(self) -> None:
        self.rows: Rows | None = None

    def wants(self, kind: EventKind) -> bool:
        return kind.phase == "X" or kind.phase in _INSTANTS

    def choose(self, rows: Rows, found: BlockColumns) -> Rows:
        self.rows = rows
        return rows

    def columns(self, rows: Rows) -> dict[str, Ints]:
        instant = rows.of_kinds([kind.phase in _INSTANTS for kind in rows.view.kinds])
        return rows.common() | {
            "category": _categories(rows),
            "instant": instant,
            "dur": np.where(instant, 0, rows.dur),
        }


class _Arrows:
    """Both ends of arrows."""

    name = ARROW

    def wants(self, kind: EventKind) -> bool:
        return kind.phase in _ARROWS

    def choose(self, rows: Rows, found: BlockColumns) -> Rows:
        return rows

    def columns(self, rows: Rows) -> dict[str, Ints]:
        return {
            "start": rows.start,
            "track": rows.tracks,
            "category": _categories(rows),
            "id": _ids([event.id for event in rows.events], rows.view.codes_of("id")),
            "end": rows.of_kinds([_ARROWS.get(kind.phase, False) for kind in rows.view.kinds]),
        }


class TimelineBuilder(ColumnBuilder):
    """The function of `Trace.map`: one block in, its columns out.

    Args:
        args: which arguments to keep, see `arguments`.
    """

    def __init__(self, args: str) -> None:
        self._reader = ArgumentReader(args)
        self._events = _Events()
        super().__init__((self._events, _Arrows(), *communication_tables()))

    def add_rest(self, view: BlockView, found: BlockColumns) -> None:
        rows, self._events.rows = self._events.rows, None
        assert rows is not None
        strings = Codes()
        found.rest = TimelineRest(
            memory=_memory(rows),
            arguments=self._arguments(rows, strings),
            texts=list(strings),
            ids=list(view.codes_of("id")),
            thread_names=thread_names(view),
            left_out=_left_out(view),
        )

    def _arguments(self, rows: Rows, strings: Codes) -> list[ArgumentRows]:
        block = rows.view.block
        has_shapes = block.text is None or SHAPES in block.text
        found: list[ArgumentRows] = []
        of_kind = rows.kind
        for number in distinct(of_kind).tolist():
            of_number: list[int] = np.flatnonzero(of_kind == number).tolist()
            texts, chosen = self._reader.chosen(
                rows.view.kinds[number].category, rows.events, of_number, has_shapes=has_shapes
            )
            if chosen:
                found += self._reader.read(texts, chosen, strings)
        return found


def _categories(rows: Rows) -> Ints:
    codes = rows.view.codes_of("category")
    return rows.of_kinds([codes[kind.category] for kind in rows.view.kinds])


def _ids(values: list[Identity], ids: Codes) -> Ints:
    fits = [type(value) is int and 0 <= value < _LARGEST_ID for value in values]
    if not all(fits):
        texts = ids.of([str(value) for value in values]).tolist()
        values = [
            value if fit else -1 - text
            for value, fit, text in zip(values, fits, texts, strict=True)
        ]
    return np.array(values, dtype=np.int64)


def _memory(rows: Rows) -> dict[str, Ints]:
    instants = np.array([kind.phase in _INSTANTS for kind in rows.view.kinds], dtype=bool)
    reports, totals = [], []
    for row in np.flatnonzero(instants[rows.kind]).tolist():
        if rows.events[row].name == _MEMORY:
            args = decode_loosely(bytes(rows.events[row].args) or b"{}", MemoryArgs)
            if args.device_type != _CPU and args.allocated is not None:
                reports.append(row)
                totals.append((args.device or 0, args.allocated, args.reserved or 0))
    table = np.array(totals, dtype=np.int64).reshape(-1, 3)
    return {
        "start": rows.view.start[rows.index[reports]],
        "device": table[:, 0],
        "allocated": table[:, 1],
        "reserved": table[:, 2],
    }


def _left_out(view: BlockView) -> Counter[str]:
    counts: NDArray[np.intp] = np.bincount(view.kind, minlength=len(view.kinds))
    found: Counter[str] = Counter()
    for kind, count in zip(view.kinds, counts.tolist(), strict=True):
        if kind.phase not in ("X", "M") and kind.phase not in _INSTANTS | _ARROWS.keys():
            found[kind.phase] += count
    return found
