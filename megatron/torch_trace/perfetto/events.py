# SPDX-License-Identifier: Apache-2.0
"""Everything of one rank that is shown, as columns over the whole file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.columns.block_slices import Codes, Track
from megatron.torch_trace.perfetto.arguments import ArgumentRows, Schema
from megatron.torch_trace.perfetto.blocks import BlockEvents, Ints
from megatron.torch_trace.tracks.impossible_times import Reach
from megatron.torch_trace.tracks.overruns import cut_overruns

NO_ARGUMENTS = -1

_COLUMNS = {
    "events": ("ts", "dur", "name", "track", "category", "instant", "schema", "schema_row"),
    "arrows": ("ts", "track", "category", "id", "end"),
    "memory": ("ts", "device", "allocated", "reserved"),
}
# There are millions of them.
_NARROW: dict[str, Any] = {
    "name": np.int32,
    "track": np.int32,
    "category": np.int32,
    "instant": np.int8,
    "end": np.int8,
    "schema": np.int32,
    "schema_row": np.int32,
    "device": np.int32,
}


@dataclass(slots=True)
class RankEvents:
    """Slices, instants, arrows and memory of one rank; times in ns as in its file.

    Args:
        events: ts, dur, name, track, category, instant, schema, schema_row.
        arrows: ts, track, category, id, end.
        memory: ts, device, allocated, reserved.
        values: "name", "track", "category", "text" -> what codes stand for.
        schemas: of arguments; `events["schema"]` is a place here, or NO_ARGUMENTS.
        columns: of each schema, its arguments; `events["schema_row"]` is a place in them.
        odd: events whose times cannot be true, left out.
        unfinished: slices without an end; on the CPU they last to the end of the trace.
        overrunning: GPU work that was cut where the next one of its stream begins.
    """

    events: dict[str, NDArray[Any]]
    arrows: dict[str, NDArray[Any]]
    memory: dict[str, NDArray[Any]]
    values: dict[str, list[Any]]
    schemas: list[Schema]
    columns: list[list[NDArray[Any]]]
    thread_names: dict[Track, str]
    left_out: Counter[str]
    without_start: int
    odd: int = 0
    unfinished: int = 0
    overrunning: int = 0

    @property
    def first_ns(self) -> int:
        """Start of the first event, 0 if there is none."""
        ts = self.events["ts"]
        return int(ts.min()) if len(ts) else 0


@dataclass(slots=True)
class Gathered:
    """Blocks joined: codes of a block become codes of the file."""

    parts: dict[str, dict[str, list[NDArray[Any]]]] = field(
        default_factory=lambda: {"events": {}, "arrows": {}, "memory": {}}
    )
    codes: dict[str, Codes] = field(
        default_factory=lambda: {
            key: Codes() for key in ("name", "track", "category", "text", "id")
        }
    )
    schemas: dict[Schema, int] = field(default_factory=dict)
    columns: list[list[list[NDArray[Any]]]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    thread_names: dict[Track, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    without_start: int = 0

    def add(self, block: BlockEvents) -> None:
        maps = {key: self.codes[key].of(values) for key, values in block.values.items()}
        count = len(block.events["ts"])
        schema = np.full(count, NO_ARGUMENTS, dtype=np.int32)
        schema_row = np.zeros(count, dtype=np.int32)
        for rows in block.arguments:
            self._add_arguments(rows, maps["text"], schema, schema_row)
        arrows = block.arrows
        odd = arrows["id"] < 0
        if odd.any():
            arrows["id"][odd] = -1 - maps["id"][-1 - arrows["id"][odd]]
        for table, columns in (
            ("events", block.events | {"schema": schema, "schema_row": schema_row}),
            ("arrows", arrows),
            ("memory", block.memory),
        ):
            for column, array in columns.items():
                coded = maps[column][array] if column in ("name", "track", "category") else array
                narrow = coded.astype(_NARROW.get(column, np.int64), copy=False)
                self.parts[table].setdefault(column, []).append(narrow)
        self.thread_names |= block.thread_names
        self.left_out += block.left_out
        self.without_start += block.without_start

    def _add_arguments(
        self, part: ArgumentRows, strings: Ints, schema: NDArray[Any], schema_row: NDArray[Any]
    ) -> None:
        code = self.schemas.setdefault(part.schema, len(self.schemas))
        if code == len(self.columns):
            self.columns.append([[] for _ in part.schema])
            self.sizes.append(0)
        schema[part.rows] = code
        schema_row[part.rows] = self.sizes[code] + np.arange(len(part.rows))
        self.sizes[code] += len(part.rows)
        for (_, kind), array, parts in zip(
            part.schema, part.columns, self.columns[code], strict=True
        ):
            parts.append(_narrow(strings[array] if kind == "text" else array))

    def finish(self, on_gpu: frozenset[str]) -> RankEvents:
        """Join.

        Args:
            on_gpu: categories of GPU work, which has no end if it is unknown.
        """
        tables: dict[str, dict[str, NDArray[Any]]] = {}
        for table, columns in self.parts.items():
            tables[table] = {}
            for column in _COLUMNS[table]:
                parts = columns.pop(column, [np.empty(0, dtype=np.int64)])
                tables[table][column] = np.concatenate(parts)
        values = {key: list(codes.codes) for key, codes in self.codes.items()}
        found = RankEvents(
            events=tables["events"],
            arrows=tables["arrows"],
            memory=tables["memory"],
            values=values,
            schemas=list(self.schemas),
            columns=[_joined(schema) for schema in self.columns],
            thread_names=self.thread_names,
            left_out=self.left_out,
            without_start=self.without_start,
        )
        _mend(found, np.array([c in on_gpu for c in values["category"]], dtype=bool))
        return found


def _joined(columns: list[list[NDArray[Any]]]) -> list[NDArray[Any]]:
    """Each argument's pieces as one array; the pieces are let go one after the other."""
    joined = []
    for number in range(len(columns)):
        parts, columns[number] = columns[number], []
        joined.append(np.concatenate(parts))
    return joined


def _narrow(array: NDArray[Any]) -> NDArray[Any]:
    """Half the memory, where the values allow it."""
    if array.dtype == np.int64 and (not len(array) or np.abs(array).max() < 1 << 31):
        return array.astype(np.int32)
    return array


def _mend(found: RankEvents, on_gpu: NDArray[np.bool_]) -> None:
    """As the analysis does: absurd times out, ends for what has none, overruns cut."""
    ts, dur = found.events["ts"], found.events["dur"]
    if not len(ts):
        return
    keep = Reach.of(ts).holds(ts, dur)
    found.odd = int((~keep).sum())
    if found.odd:
        for column, array in found.events.items():
            found.events[column] = array[keep]
        ts, dur = found.events["ts"], found.events["dur"]
    open_ = dur < 0
    found.unfinished = int(open_.sum())
    if found.unfinished:
        end = int((ts + np.maximum(dur, 0)).max())
        gpu = on_gpu[found.events["category"]]
        dur[open_] = np.where(gpu, 0, end - ts)[open_]
    work = np.flatnonzero(on_gpu[found.events["category"]])
    lengths = dur[work]
    found.overrunning = cut_overruns(found.events["track"][work], ts[work], lengths)
    dur[work] = lengths
