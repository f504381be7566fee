# SPDX-License-Identifier: Apache-2.0
"""From one block of events to columns, the same for every reader of columns.

    analysis    gpu, call, op, overhead, frame      a few arguments of each
    convert     event, arrow, and the analysis' own  arguments by their keys
    export      slice, and the analysis' own        ids, sizes, collectives

Which events a table takes, and which of their arguments are decoded, the table says itself; times,
names and tracks are made here. All of it runs in the reading processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.columns.block_times import block_times
from megatron.torch_trace.columns.codes import Codes, TupleCodes, chosen, coded, kinds_of
from megatron.torch_trace.columns.intervals import Ints
from megatron.torch_trace.columns.slice_events import Slice, are_slices
from megatron.torch_trace.format.categories import category
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.reader import EventBlock


class EventKind(NamedTuple):
    """All events of one phase and category.

    Args:
        phase: `ph` of the trace format.
        written: the category as the trace has it.
        category: its present name.
    """

    phase: str
    written: str
    category: str


@dataclass(slots=True)
class BlockColumns:
    """Columns of one block; codes are indices into the block's own lists.

    Args:
        tables: table -> column -> array; a column in which no row has anything may be left out.
        values: "name", "track", "category" and what tables add -> what their codes stand for.
        without_start: table -> events without a time, which are in no table.
        counts: what else a table counts.
        rest: what a reader of its own adds.
    """

    tables: dict[str, dict[str, Ints]] = field(default_factory=dict)
    values: dict[str, list[Any]] = field(default_factory=dict)
    without_start: Counter[str] = field(default_factory=Counter)
    counts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    rest: Any = None


@dataclass(slots=True)
class BlockView:
    """A block and what is known of its events.

    Args:
        events: decoded, their arguments still text; only slices if only these were asked for.
        start, dur: ns; a missing `dur` is 0.
        kinds: that there are; `kind` is the index of each event's among them.
        codes: kind of value -> its codes in this block.
    """

    block: EventBlock[Any]
    events: list[Any]
    start: Ints
    dur: Ints
    kinds: list[EventKind]
    kind: NDArray[np.intp]
    codes: dict[str, Codes] = field(default_factory=dict)

    def codes_of(self, what: str) -> Codes:
        """The codes of one kind of value, made when first asked for."""
        return self.codes.setdefault(what, Codes())


@dataclass(slots=True)
class Rows:
    """The events of one table, in the order of the block.

    Args:
        index: of the events in the block.
    """

    view: BlockView
    index: NDArray[np.intp]
    events: list[Any]

    @property
    def dur(self) -> Ints:
        return self.view.dur[self.index]

    @property
    def kind(self) -> NDArray[np.intp]:
        """Index of each event's kind in `view.kinds`."""
        return self.view.kind[self.index]

    def common(self) -> dict[str, Ints]:
        """start and dur, name and track as codes."""
        return {
            "start": self.start,
            "dur": self.dur,
            "name": self.view.codes_of("name").of([event.name for event in self.events]),
            "track": self.tracks,
        }

    @property
    def start(self) -> Ints:
        return self.view.start[self.index]

    @property
    def tracks(self) -> Ints:
        """The track of each event, as a code."""
        tracks = TupleCodes(2, self.view.codes_of("track"))
        code = [tracks[event.pid][event.tid] for event in self.events]
        return np.fromiter(code, dtype=np.int64, count=len(code))

    def of_kinds(self, quality: Sequence[Any]) -> Ints:
        """What `quality` says of each event, one entry a kind of the block."""
        return np.array(quality, dtype=np.int64)[self.kind]

    def only(self, mask: NDArray[np.bool_]) -> Rows:
        """Some of them."""
        return Rows(self.view, self.index[mask], chosen(self.events, mask))


class Table(Protocol):
    """One table: which events it takes, and which of their arguments become columns."""

    @property
    def name(self) -> str: ...

    def wants(self, kind: EventKind) -> bool:
        """Whether events of this kind may be rows."""

    def choose(self, rows: Rows, found: BlockColumns) -> Rows:
        """Those of the wanted events that become rows."""

    def columns(self, rows: Rows) -> dict[str, Ints]:
        """Columns of at least one row; `rows.common()` are those that most tables have."""


class ColumnBuilder:
    """The function of `Trace.map`: one block in, its columns out.

    Args:
        tables: what is asked for.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = tuple(tables)

    def __eq__(self, other: object) -> bool:
        """Whether both give the same of every block."""
        return type(other) is type(self) and other._tables == self._tables

    def __hash__(self) -> int:
        return hash((type(self), self._tables))

    def __call__(self, block: EventBlock[Any]) -> BlockColumns:
        view = _view(block)
        timed = view.start != NO_TIME
        found = BlockColumns()
        for table in self._tables:
            wanted = np.array([table.wants(kind) for kind in view.kinds], dtype=bool)
            if wanted.any():
                mine = wanted[view.kind]
                rows_with_time = mine & timed
                index = np.flatnonzero(rows_with_time)
                found.without_start[table.name] += int(mine.sum()) - len(index)
                rows = Rows(view, index, chosen(view.events, rows_with_time))
            else:
                rows = Rows(view, np.zeros(0, dtype=np.intp), [])
            rows = table.choose(rows, found)
            if rows.events:
                found.tables[table.name] = table.columns(rows)
        self.add_rest(view, found)
        found.values = {what: list(codes) for what, codes in view.codes.items()}
        return found

    def add_rest(self, view: BlockView, found: BlockColumns) -> None:
        """What is no table; for readers that need it."""


def _view(block: EventBlock[Any]) -> BlockView:
    if are_slices(block.events):
        return _view_of_slices(block)
    start, dur = block_times(block)
    dur[dur == NO_TIME] = 0
    keys, kind = kinds_of(block.events)
    kinds = [EventKind(phase, written, category(written)) for phase, written in keys]
    return BlockView(block, block.events, start, dur, kinds, kind)


def _view_of_slices(block: EventBlock[Any]) -> BlockView:
    events = [event for event in block.events if type(event) is Slice]
    start, dur = block_times(block, events)
    dur[dur == NO_TIME] = 0
    keys, kind = coded([event.cat for event in events])
    kinds = [EventKind(Slice.ph, written, category(written)) for written in keys]
    return BlockView(block, events, start, dur, kinds, kind)
