# SPDX-License-Identifier: Apache-2.0
"""Everything of one rank that is shown, as columns over the whole file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.columns.activity_tables import CODES as ACTIVITY_CODES
from megatron.torch_trace.columns.activity_tables import COLUMNS as ACTIVITY_COLUMNS
from megatron.torch_trace.columns.builder import BlockColumns
from megatron.torch_trace.columns.codes import Codes
from megatron.torch_trace.columns.growing_column import GrowingColumn
from megatron.torch_trace.columns.intervals import Ints
from megatron.torch_trace.columns.joined_columns import JoinedColumns
from megatron.torch_trace.columns.true_times import mend
from megatron.torch_trace.format.categories import GPU_WORK
from megatron.torch_trace.format.tracks import Track
from megatron.torch_trace.perfetto.arguments import ArgumentRows, Schema
from megatron.torch_trace.perfetto.blocks import ARROW, CODES, COLUMNS, EVENT, TimelineRest

NO_ARGUMENTS = -1

_MEMORY = ("start", "device", "allocated", "reserved")


@dataclass(slots=True)
class RankEvents:
    """Slices, instants, arrows and memory of one rank; times in ns as in its file.

    Args:
        events: start, dur, name, track, category, instant, schema, schema_row.
        arrows: start, track, category, id, end.
        memory: start, device, allocated, reserved.
        values: "name", "track", "category", "text" -> what codes stand for.
        schemas: of arguments; `events["schema"]` is an index here, or NO_ARGUMENTS.
        columns: of each schema, its arguments; `events["schema_row"]` is an index into them.
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
        start = self.events["start"]
        return int(start.min()) if len(start) else 0


class JoinedTimeline:
    """Blocks joined to what is shown of one rank.

    Attributes:
        activity: the analysis' own tables of the same blocks.
    """

    def __init__(self) -> None:
        self.activity = JoinedColumns(ACTIVITY_COLUMNS, ACTIVITY_CODES)
        self._shown = JoinedColumns(COLUMNS, CODES)
        self._schema = GrowingColumn(np.int32, NO_ARGUMENTS)
        self._schema_row = GrowingColumn(np.int32, 0)
        self._texts, self._ids = Codes(), Codes()
        self._schemas: dict[Schema, int] = {}
        self._arguments: list[list[list[NDArray[Any]]]] = []
        self._sizes: list[int] = []
        self._memory: dict[str, list[Ints]] = {column: [] for column in _MEMORY}
        self._thread_names: dict[Track, str] = {}
        self._left_out: Counter[str] = Counter()

    def add(self, block: BlockColumns) -> None:
        """Append what a block has."""
        rest: TimelineRest = block.rest
        arrows = block.tables.get(ARROW)
        if arrows is not None and rest.ids:
            odd = arrows["id"] < 0
            arrows["id"][odd] = -1 - self._ids.of(rest.ids)[-1 - arrows["id"][odd]]
        if EVENT in block.tables:
            self._add_arguments(rest, len(block.tables[EVENT]["start"]))
        for column in _MEMORY:
            self._memory[column].append(rest.memory[column])
        self._shown.add(block)
        self.activity.add(block)
        self._thread_names |= rest.thread_names
        self._left_out += rest.left_out

    def _add_arguments(self, rest: TimelineRest, count: int) -> None:
        texts = self._texts.of(rest.texts)
        schema = np.full(count, NO_ARGUMENTS, dtype=np.int32)
        schema_row = np.zeros(count, dtype=np.int32)
        for part in rest.arguments:
            self._add_schema(part, texts, schema, schema_row)
        self._schema.add(schema)
        self._schema_row.add(schema_row)

    def _add_schema(
        self, part: ArgumentRows, texts: Ints, schema: NDArray[Any], schema_row: NDArray[Any]
    ) -> None:
        code = self._schemas.setdefault(part.schema, len(self._schemas))
        if code == len(self._arguments):
            self._arguments.append([[] for _ in part.schema])
            self._sizes.append(0)
        schema[part.rows] = code
        schema_row[part.rows] = self._sizes[code] + np.arange(len(part.rows))
        self._sizes[code] += len(part.rows)
        for (_, kind), array, parts in zip(
            part.schema, part.columns, self._arguments[code], strict=True
        ):
            parts.append(_narrow(texts[array] if kind == "text" else array))

    def finish(self) -> RankEvents:
        """All of it; what was joined is let go."""
        tables, codes = self._shown.finish(), self._shown.codes
        events = tables[EVENT]
        events["schema"], events["schema_row"] = self._schema.finish(), self._schema_row.finish()
        on_gpu = np.array([c in GPU_WORK for c in codes["category"]], dtype=bool)
        odd = mend({EVENT: events}, lambda _, columns: on_gpu[columns["category"]])
        return RankEvents(
            events=events,
            arrows=tables[ARROW],
            memory={name: np.concatenate(parts) for name, parts in self._memory.items()}
            if self._memory["start"]
            else {name: np.empty(0, dtype=np.int64) for name in _MEMORY},
            values={what: list(of) for what, of in codes.items()} | {"text": list(self._texts)},
            schemas=list(self._schemas),
            columns=[_joined(schema) for schema in self._arguments],
            thread_names=self._thread_names,
            left_out=self._left_out,
            without_start=self._shown.without_start[EVENT],
            odd=odd.far,
            unfinished=odd.unfinished,
            overrunning=odd.overrunning,
        )


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
