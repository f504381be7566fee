# SPDX-License-Identifier: Apache-2.0
"""The part of `events` that looks at one block: its slices as arrays with codes of its own."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.columns.block_times import block_times
from megatron.torch_trace.format.categories import category
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.reader import Args, Event, EventBlock

Track = tuple[int | str | None, int | str | None]

INTEGER_ARGS = (
    "stream",
    "device",
    "correlation",
    "external_id",
    "ev_idx",
    "sequence_number",
    "fwd_thread_id",
    "python_id",
    "python_parent_id",
)
COLLECTIVE_ARGS = (
    "collective",
    "in_nelems",
    "out_nelems",
    "group_size",
    "dtype",
    "group_name",
    "group_description",
    "group_ranks",
    "in_split",
    "out_split",
    "seq",
    "src_rank",
    "dst_rank",
)
COLLECTIVE_NUMBERS = frozenset(
    {"in_nelems", "out_nelems", "group_size", "seq", "src_rank", "dst_rank"}
)
MISSING = NO_TIME
_CALL = ("correlation", "external_id")
_GPU = (*_CALL, "stream", "device")
_OPERATOR = ("external_id", "ev_idx", "sequence_number", "fwd_thread_id")
_ARGS_OF = {
    "kernel": _GPU,
    "gpu_memcpy": _GPU,
    "gpu_memset": _GPU,
    "cuda_runtime": _CALL,
    "cuda_driver": _CALL,
    "cpu_op": _OPERATOR,
    "user_annotation": _OPERATOR,
    "python_function": ("ev_idx", "python_id", "python_parent_id"),
}
"""What events of the usual categories have; of all others every argument is looked for."""
_NO_ARGS = Args()
_TRACK = attrgetter("pid", "tid")
_COLLECTIVE = attrgetter(*COLLECTIVE_ARGS)


@dataclass(slots=True)
class BlockColumns:
    """What a worker returns of one block."""

    numbers: dict[str, NDArray[np.int64]]
    names: list[str]
    categories: list[str]
    tracks: list[Track]
    collectives: list[tuple[Any, ...]]
    track_names: dict[Track, str]
    missing: int


class Codes:
    """Values -> 0, 1, 2, ... in the order in which they are first seen."""

    def __init__(self) -> None:
        self.codes: dict[Any, int] = {}

    def of(self, values: list[Any]) -> NDArray[np.int64]:
        codes = self.codes
        return np.array([codes.setdefault(v, len(codes)) for v in values], dtype=np.int64)


def columns_of(without: frozenset[str], block: EventBlock[Event]) -> BlockColumns:
    starts, durations = block_times(block)
    events: list[Event] = []
    rows: list[int] = []
    track_names: dict[Track, str] = {}
    for row, event in enumerate(block.events):
        if event.ph == "X":
            if category(event.cat) not in without:
                events.append(event)
                rows.append(row)
        elif event.ph == "M" and event.name == "thread_name":
            name = _name_argument(block.texts[row])
            if name:
                track_names[event.pid, event.tid] = name
    ts, dur = starts[rows], durations[rows]
    dur[dur == NO_TIME] = 0
    timed = ts != NO_TIME
    missing = int((~timed).sum())
    if missing:
        events = [event for event, keep in zip(events, timed.tolist(), strict=True) if keep]
        ts, dur = ts[timed], dur[timed]

    names, categories, tracks = Codes(), Codes(), Codes()
    numbers = {
        "ts": ts,
        "dur": dur,
        "name": names.of([event.name for event in events]),
        "category": categories.of([event.cat for event in events]),
        "track": tracks.of(list(map(_TRACK, events))),
    }
    arguments = [event.args or _NO_ARGS for event in events]
    present = [category(written) for written in categories.codes]
    for key in INTEGER_ARGS:
        asked = np.array([key in _ARGS_OF.get(c, INTEGER_ARGS) for c in present], dtype=bool)
        numbers[key] = np.full(len(events), MISSING, dtype=np.int64)
        where = np.flatnonzero(asked[numbers["category"]]) if present else np.empty(0, np.intp)
        get = attrgetter(key)
        numbers[key][where] = _integers([get(arguments[row]) for row in where.tolist()])
    numbers["bytes"] = _integers([_integer(a.bytes_) for a in arguments])
    collectives: list[tuple[Any, ...]] = []
    rows_of = np.full(len(events), MISSING, dtype=np.int64)
    for row, args in enumerate(arguments):
        if args.collective is not None:
            rows_of[row] = len(collectives)
            collectives.append(_COLLECTIVE(args))
    numbers["args"] = rows_of
    return BlockColumns(
        numbers,
        list(names.codes),
        present,
        list(tracks.codes),
        collectives,
        track_names,
        missing,
    )


def _name_argument(text: bytes) -> str | None:
    import json

    args = json.loads(text).get("args")
    name = args.get("name") if isinstance(args, dict) else None
    return name if isinstance(name, str) else None


def _integer(value: int | str | None) -> int | None:
    try:
        return None if value is None else int(value)
    except ValueError:
        return None


def _integers(values: list[int | None]) -> NDArray[np.int64]:
    try:
        return np.array([MISSING if v is None else v for v in values], dtype=np.int64)
    except OverflowError:
        # No id of torch is that large; whatever it is, it links nothing.
        limit = 1 << 63
        return np.array(
            [MISSING if v is None or not -limit <= v < limit else v for v in values],
            dtype=np.int64,
        )
