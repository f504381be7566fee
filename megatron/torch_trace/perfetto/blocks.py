# SPDX-License-Identifier: Apache-2.0
"""From one block of events to the columns that a timeline needs; runs in the reading processes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.analysis.block_columns import BlockColumns, LookForActivity
from megatron.torch_trace.analysis.event_arguments import SlimEventWithArgs
from megatron.torch_trace.columns import Codes, Track
from megatron.torch_trace.kinds import coded
from megatron.torch_trace.perfetto.arguments import ArgumentReader, ArgumentRows
from megatron.torch_trace.reader import EventBlock
from megatron.torch_trace.reader.event import Identity, decode_loosely
from megatron.torch_trace.times import NO_TIME, block_times
from megatron.torch_trace.vocabulary import category

Ints = NDArray[np.int64]

_INSTANTS = frozenset({"i", "I", "R"})
_ARROWS = {"s": 0, "t": 1, "f": 1}
_MEMORY = "[memory]"
_LARGEST_ID = 1 << 62
_GPU_DEVICES = (1, 20)
"""torch's DeviceType of CUDA and of accelerators of other makers."""


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


class LookForTimeline:
    """The function of `Trace.map`: one block in, its columns out.

    Args:
        args: which arguments to keep, see `arguments`.
    """

    def __init__(self, args: str) -> None:
        self._reader = ArgumentReader(args)
        self._look = LookForActivity()

    def __call__(self, block: EventBlock[TimelineEvent]) -> BlockEvents:
        events = block.events
        start, dur = block_times(block)
        dur[dur == NO_TIME] = 0
        kinds, code = coded([(event.ph, event.cat) for event in events])
        shown = np.array([ph == "X" or ph in _INSTANTS for ph, _ in kinds], dtype=bool)
        arrow = np.array([ph in _ARROWS for ph, _ in kinds], dtype=bool)
        names, tracks, strings, ids = Codes(), Codes(), Codes(), Codes()

        wanted = shown[code]
        without_start = int((wanted & (start == NO_TIME)).sum())
        rows = np.flatnonzero(wanted & (start != NO_TIME))
        some = [events[row] for row in rows.tolist()]
        instants = np.array([ph != "X" for ph, _ in kinds], dtype=np.int64)
        columns = {
            "ts": start[rows],
            "dur": dur[rows],
            "name": names.of([event.name for event in some]),
            "track": tracks.of([(event.pid, event.tid) for event in some]),
            "category": code[rows].astype(np.int64),
            "instant": instants[code[rows]] if kinds else np.zeros(0, dtype=np.int64),
        }
        columns["dur"][columns["instant"] == 1] = 0

        ends = np.flatnonzero(arrow[code] & (start != NO_TIME))
        flows = [events[row] for row in ends.tolist()]
        side = np.array([_ARROWS.get(ph, 0) for ph, _ in kinds], dtype=np.int64)
        arrows = {
            "ts": start[ends],
            "track": tracks.of([(event.pid, event.tid) for event in flows]),
            "category": code[ends].astype(np.int64),
            "id": _ids([event.id for event in flows], ids),
            "end": side[code[ends]] if kinds else np.zeros(0, dtype=np.int64),
        }
        found = BlockEvents(
            events=columns,
            arrows=arrows,
            memory=_memory(some, columns),
            values={},
            arguments=self._arguments(some, kinds, columns, strings),
            activity=self._look(cast(EventBlock[SlimEventWithArgs], block)),
            without_start=without_start,
        )
        found.values = {
            "name": list(names.codes),
            "track": list(tracks.codes),
            "category": [category(written) for _, written in kinds],
            "text": list(strings.codes),
            "id": list(ids.codes),
        }
        _note_the_rest(block, kinds, code, found)
        return found

    def _arguments(
        self,
        events: list[TimelineEvent],
        kinds: list[tuple[str, str]],
        columns: dict[str, Ints],
        strings: Codes,
    ) -> list[ArgumentRows]:
        found: list[ArgumentRows] = []
        for code, (_, written) in enumerate(kinds):
            if not self._reader.wants(category(written)):
                continue
            rows = np.flatnonzero(columns["category"] == code).tolist()
            pairs = [(bytes(events[row].args), row) for row in rows]
            pairs = [pair for pair in pairs if len(pair[0]) > 2]
            if pairs:
                texts, mine = zip(*pairs, strict=True)
                found += self._reader.read(texts, mine, strings)
        return found


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
            if args.device_type in _GPU_DEVICES and args.allocated is not None:
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
    kinds: list[tuple[str, str]],
    code: NDArray[np.intp],
    found: BlockEvents,
) -> None:
    for number, (phase, _) in enumerate(kinds):
        if phase == "X" or phase in _INSTANTS or phase in _ARROWS:
            continue
        rows = np.flatnonzero(code == number).tolist()
        if phase != "M":
            found.left_out[phase] += len(rows)
            continue
        for row in rows:
            event = block.events[row]
            if event.name == "thread_name":
                args = json.loads(bytes(event.args) or b"{}")
                name = args.get("name") if isinstance(args, dict) else None
                if isinstance(name, str):
                    found.thread_names[event.pid, event.tid] = name.strip()
