# SPDX-License-Identifier: Apache-2.0
"""Slices, instants and counters of one rank as packets: every packet of one form at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.format.integer_arrays import Ints
from megatron.torch_trace.perfetto import shapes, wire
from megatron.torch_trace.perfetto.arguments import FLAG, INTEGER, REAL, TEXT
from megatron.torch_trace.perfetto.events import NO_ARGUMENTS, RankEvents
from megatron.torch_trace.perfetto.flows import Arrows
from megatron.torch_trace.perfetto.order import Order
from megatron.torch_trace.perfetto.shapes import Parts, Shape

_PACKET, _TIMESTAMP, _SEQUENCE, _FLAGS, _EVENT = 1, 8, 10, 13, 11
_NEEDS_STATE = 2
_TYPE, _TRACK, _CATEGORY, _NAME, _ARGUMENT = 9, 11, 3, 10, 4
_BEGINS_ARROW, _ENDS_ARROW, _COUNTER = 47, 48, 30
_BEGIN, _END, _INSTANT, _COUNT = 1, 2, 3, 4
_VALUE_FIELDS = {INTEGER: 4, FLAG: 2, TEXT: 17, REAL: 5}


class _Run(NamedTuple):
    """Packets of one row of the timeline, in order of time.

    Args:
        time: of each packet, ns of the rank's clock.
        form: of each packet, an index into the emitter's forms.
        row: of each packet's event, or of its value in a counter.
        uuid: of the row of the timeline.
    """

    time: Ints
    form: NDArray[np.int32]
    row: NDArray[np.int32]
    uuid: int


class Widths(NamedTuple):
    """Bytes of the numbers that all packets of a rank hold."""

    time: int
    track: int
    category: int
    name: int
    argument: int
    text: int


class Emitter:
    """Makes the packets of one rank.

    Args:
        sequence: the rank's number of Perfetto's packet sequences.
        found: the rank's events, sorted by row and start. Its clock shows 0 at the first one.
        arrows: by event.
        largest_uuid: of its rows.
    """

    def __init__(
        self,
        sequence: int,
        found: RankEvents,
        arrows: Arrows,
        largest_uuid: int,
    ) -> None:
        self._sequence = sequence
        self._found, self._arrows, self._zero = found, arrows, found.first_ns
        events, values = found.events, found.values
        last = int((events["start"] + events["dur"]).max(initial=self._zero)) - self._zero
        keys = [key for schema in found.schemas for key, _ in schema]
        self._keys = {key: iid for iid, key in enumerate(dict.fromkeys(keys), 1)}
        self._widths = Widths(
            time=wire.width_of(last),
            track=wire.width_of(largest_uuid),
            category=wire.width_of(len(values["category"])),
            name=wire.width_of(len(values["name"])),
            argument=wire.width_of(len(self._keys)),
            text=wire.width_of(len(values["text"])),
        )
        self._arrow_base = sequence << 40
        self._named = np.array([bool(name) for name in values["category"]], dtype=np.int8)
        self._forms, self._form_of = self._choose_forms()
        self._end = len(self._forms) - 1
        self._counters: list[NDArray[np.int64]] = []
        self._runs: list[_Run] = []
        self.packets = 0

    @property
    def argument_names(self) -> list[str]:
        """In the order of the numbers that packets have for them."""
        return list(self._keys)

    def _choose_forms(self) -> tuple[list[Shape], NDArray[np.int32]]:
        """The form of each event's first packet; the last form is that of all ends."""
        events = self._found.events
        keys = (
            events["instant"],
            self._named[events["category"]],
            events["schema"],
            self._arrows.begins.count,
            self._arrows.finishes.count,
        )
        # One number each: sorting rows would take many times as long.
        code = np.zeros(len(events["start"]), dtype=np.int64)
        for key in keys:
            code *= int(key.max(initial=0)) + 2
            code += key + 1
        _, first, form_of = np.unique(code, return_index=True, return_inverse=True)
        del code
        self._kinds = [tuple(int(key[row]) for key in keys) for row in first.tolist()]
        forms = [self._begin(*kind) for kind in self._kinds]
        forms.append(Shape(self._packet([*_type(_END), *self._track()])))
        return forms, form_of.ravel().astype(np.int32)

    def _track(self) -> Parts:
        return shapes.number(_TRACK, self._widths.track)

    def _packet(self, event: Parts) -> Parts:
        constant = wire.number(_SEQUENCE, self._sequence) + wire.number(_FLAGS, _NEEDS_STATE)
        time = shapes.number(_TIMESTAMP, self._widths.time)
        return shapes.message(_PACKET, [*time, constant, *shapes.message(_EVENT, event)])

    def _begin(self, instant: int, named: int, schema: int, begins: int, finishes: int) -> Shape:
        event = [
            *_type(_INSTANT if instant else _BEGIN),
            *self._track(),
            *(shapes.number(_CATEGORY, self._widths.category) if named else []),
            *shapes.number(_NAME, self._widths.name),
            *shapes.eight_bytes(_BEGINS_ARROW) * begins,
            *shapes.eight_bytes(_ENDS_ARROW) * finishes,
        ]
        if schema != NO_ARGUMENTS:
            for (key, kind), column in zip(
                self._found.schemas[schema], self._found.columns[schema], strict=True
            ):
                name = wire.number_key(1) + wire.varint(self._keys[key], self._widths.argument)
                event += shapes.message(_ARGUMENT, [name, *self._value(kind, column)])
        return Shape(self._packet(event))

    def _value(self, kind: str, column: NDArray[Any]) -> Parts:
        if kind == REAL:
            return shapes.eight_bytes(_VALUE_FIELDS[kind])
        if kind == TEXT:
            return shapes.number(_VALUE_FIELDS[kind], self._widths.text)
        negative = int(column.min(initial=0)) < 0
        width = 10 if negative else wire.width_of(int(column.max(initial=0)))
        return shapes.number(_VALUE_FIELDS[kind], width)

    def lane(self, events: Ints, order: Order, uuid: int) -> None:
        """Add nested slices.

        Args:
            events: indices of the slices in the rank's events.
            order: of their begins and ends.
            uuid: of the row.
        """
        found, is_end, rows = self._found.events, order.is_end, events[order.slice]
        instant_ends = is_end & (found["instant"][rows] == 1)
        if instant_ends.any():
            is_end, rows = is_end[~instant_ends], rows[~instant_ends]
        form = np.where(is_end, self._end, self._form_of[rows]).astype(np.int32)
        time = found["start"][rows] - self._zero
        time[is_end] += found["dur"][rows[is_end]]
        self._runs.append(_Run(time, form, rows.astype(np.int32), uuid))

    def counter(self, ts: Ints, values: Ints, uuid: int) -> None:
        """Add a counter; its values are not negative."""
        width = wire.width_of(int(values.max(initial=0)))
        parts = [*_type(_COUNT), *self._track(), *shapes.number(_COUNTER, width)]
        form = np.full(len(ts), len(self._forms), dtype=np.int32)
        self._forms.append(Shape(self._packet(parts)))
        self._counters.append(values.astype(np.int64))
        index = np.arange(len(ts), dtype=np.int32)
        self._runs.append(_Run(ts - self._zero, form, index, uuid))

    def in_order(self, count: int) -> Iterator[tuple[int, bytes]]:
        """All packets in order of time; of the same time, in the order in which they were added.

        Args:
            count: packets that are made at once.

        Yields:
            (time of the first one, ns of the rank's clock; the packets).
        """
        if not self._runs:
            return
        uuids = [np.full(len(run.time), run.uuid, dtype=np.int64) for run in self._runs]
        whole = [np.concatenate(column) for column in (*zip(*self._runs, strict=True),)[:3]]
        time, form, index, uuid = *whole, np.concatenate(uuids)
        self._runs = []
        order = np.argsort(time, kind="stable")
        for at in range(0, len(order), count):
            part = order[at : at + count]
            packets = self._packets(time[part], form[part], index[part], uuid[part])
            self.packets += len(part)
            yield int(time[part[0]]), packets

    def _packets(self, time: Ints, forms: NDArray[Any], index: Ints, uuid: Ints) -> bytes:
        events = self._found.events

        def columns_of(form: int, positions: NDArray[np.intp]) -> list[NDArray[Any]]:
            common = [time[positions], uuid[positions]]
            if form == self._end:
                return common
            mine = index[positions]
            if form > self._end:
                return [*common, self._counters[form - self._end - 1][mine]]
            category = events["category"][mine].astype(np.int64) + 1
            return [
                *common,
                *([category] if self._kinds[form][1] else []),
                events["name"][mine].astype(np.int64) + 1,
                *self._of_arrows(form, mine),
                *self._of_arguments(form, mine),
            ]

        return shapes.interleave(forms, self._forms, columns_of)

    def _of_arrows(self, form: int, rows: Ints) -> list[NDArray[Any]]:
        columns: list[NDArray[Any]] = []
        *_, begins, finishes = self._kinds[form]
        for count, ends in ((begins, self._arrows.begins), (finishes, self._arrows.finishes)):
            first = ends.first[rows]
            columns += [ends.arrow[first + nth] + self._arrow_base for nth in range(count)]
        return columns

    def _of_arguments(self, form: int, rows: Ints) -> list[NDArray[Any]]:
        schema = self._kinds[form][2]
        if schema == NO_ARGUMENTS:
            return []
        schema_rows = self._found.events["schema_row"][rows]
        columns: list[NDArray[Any]] = []
        for (_, kind), column in zip(
            self._found.schemas[schema], self._found.columns[schema], strict=True
        ):
            values = column[schema_rows]
            if kind == REAL:
                columns.append(values)
            else:
                columns.append(values.astype(np.int64) + (1 if kind == TEXT else 0))
        return columns


def _type(kind: int) -> Parts:
    return [wire.number(_TYPE, kind)]
