# SPDX-License-Identifier: Apache-2.0
"""From one block of events to the columns that the analysis needs; runs in the reading processes.

Arguments are decoded only where they are used: all of a kernel's, of an operator those of a
collective and, in traces that need them, what belongs to shapes and autograd; of an arrow none.
That is most of the time of an analysis.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megatron.torch_trace.columns.arguments import (
    CallArgs,
    GpuArgs,
    OpArgs,
    SlimEventWithArgs,
    arguments,
)
from megatron.torch_trace.columns.block_times import block_times
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.categories import LAUNCHES, category
from megatron.torch_trace.format.long_names import analysed
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.gpu_record.other_devices import ASCEND, ASCEND_MARK, device_of
from megatron.torch_trace.reader import EventBlock

GPU, CALL, OP, OVERHEAD, FRAME = "gpu", "call", "op", "overhead", "frame"

LEAST_FRAME_NS = 100_000
"""Shorter Python frames are counted only: there are millions of them."""

MODULE_FRAME = "nn.Module: "
"""Frames of modules are kept whatever their length."""

COLLECTIVE_FIELDS = (
    "name",
    "in_nelems",
    "out_nelems",
    "group_size",
    "dtype",
    "group_name",
    "group_description",
    "group_ranks",
    "seq",
)

_KINDS = {"kernel": 0, "gpu_memcpy": 1, "gpu_memset": 2}
_COMMS = "record_param_comms"
_DIMS = b'"Input Dims"'
# Its FLOPs depend on whether it is causal; all others' on their shapes alone.
_ATTENTION = "att"


@dataclass(slots=True)
class BlockColumns:
    """Columns of one block.

    Args:
        tables: GPU, CALL, OP, OVERHEAD, FRAME -> column -> int64 array; a column of -1 only may be
            left out.
        others: category -> rows, of devices that are no CUDA or ROCm GPU.
        values: "name", "track", "shape", "inputs", "collective" -> what its codes stand for.
    """

    tables: dict[str, dict[str, Ints]] = field(default_factory=dict)
    values: dict[str, list[Any]] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    python_functions: int = 0
    without_start: int = 0


class _Codes(dict[Any, int]):
    """Value -> 0, 1, 2, ... in order of first sight: `codes[value]`."""

    def __missing__(self, value: Any) -> int:
        code = self[value] = len(self)
        return code


class LookForActivity:
    """The function of `Trace.map`: one block in, its columns out.

    Args:
        operators: decode the arguments of all operators; without it shapes are found where a block
            begins with them, and there are no sequence numbers.
    """

    def __init__(self, *, operators: bool = False) -> None:
        self._operators = operators

    def __call__(self, block: EventBlock[SlimEventWithArgs]) -> BlockColumns:
        columns = BlockColumns()
        chosen = self._choose(block, columns.others)
        start, dur = block_times(block)
        dur[dur == NO_TIME] = 0
        missing = start == NO_TIME
        names, tracks, collectives = _Codes(), _Codes(), _Codes()
        shapes, inputs = _Codes(), _Codes()
        events = block.events
        for table, rows in chosen.items():
            if missing.any():
                present = [row for row in rows if not missing[row]]
                columns.without_start += len(rows) - len(present)
                rows = present
            if table == FRAME:
                columns.python_functions += len(rows)
                rows = [
                    row
                    for row in rows
                    if dur[row] >= LEAST_FRAME_NS or events[row].name.startswith(MODULE_FRAME)
                ]
            if not rows:
                continue
            some = [events[row] for row in rows]
            found = {
                "start": start[rows],
                "dur": dur[rows],
                "name": ints([names[event.name] for event in some]),
                "track": ints([tracks[event.pid, event.tid] for event in some]),
            }
            if table == GPU:
                found |= _gpu(some, collectives)
            elif table == CALL:
                found["correlation"] = _numbers([a.correlation for a in arguments(some, CallArgs)])
            elif table == OP:
                found |= _ops(some, collectives)
                if self._operators or any(_DIMS in bytes(event.args) for event in some[:64]):
                    found |= _operators(some, shapes, inputs)
            columns.tables[table] = found
        columns.values = {
            "name": [analysed(name) for name in names],
            "track": list(tracks),
            "shape": list(shapes),
            "inputs": list(inputs),
            "collective": list(collectives),
        }
        return columns

    def _choose(
        self, block: EventBlock[SlimEventWithArgs], others: dict[str, int]
    ) -> dict[str, list[int]]:
        """Rows of the block, by table; rows of other devices are counted in `others`."""
        events = block.events
        categories = _Codes()
        codes = ints([categories[event.cat] for event in events])
        chosen: dict[str, list[int]] = {}
        for written, code in categories.items():
            table = _table(written)
            if not written or device_of(category(written)):
                some = [event for event in events if event.cat == written and event.ph == "X"]
                if not written:
                    some = [event for event in some if ASCEND_MARK in bytes(event.args)]
                name = category(written) or ASCEND
                others[name] = others.get(name, 0) + len(some)
            if table is None:
                continue
            rows: list[int] = np.flatnonzero(codes == code).tolist()
            slices = [row for row in rows if events[row].ph == "X"]
            chosen[table] = sorted(chosen[table] + slices) if table in chosen else slices
        return chosen


def _table(written: str) -> str | None:
    name = category(written)
    if name in _KINDS:
        return GPU
    if name in LAUNCHES:
        return CALL
    if name in ("cpu_op", "user_annotation"):
        return OP
    if name == "python_function":
        return FRAME
    return OVERHEAD if name == "overhead" else None


def _gpu(events: list[SlimEventWithArgs], collectives: _Codes) -> dict[str, Ints]:
    kinds = {written: _KINDS[category(written)] for written in {e.cat for e in events}}
    args = arguments(events, GpuArgs)
    return {
        "kind": ints([kinds[event.cat] for event in events]),
        "device": _numbers(
            [
                a.device if a.device is not None else _integer(e.pid)
                for a, e in zip(args, events, strict=True)
            ]
        ),
        "stream": _numbers(
            [
                a.stream if a.stream is not None else _integer(e.tid)
                for a, e in zip(args, events, strict=True)
            ]
        ),
        "correlation": _numbers([a.correlation for a in args]),
        "bytes": np.maximum(
            _numbers([None if a.bytes_ is None else _integer(a.bytes_) for a in args]), 0
        ),
        "collective": ints([_collective(a, collectives) for a in args]),
    }


def _collective(args: GpuArgs, collectives: _Codes) -> int:
    if args.name is None:
        return -1
    return collectives[tuple(getattr(args, name) for name in COLLECTIVE_FIELDS)]


def _ops(events: list[SlimEventWithArgs], collectives: _Codes) -> dict[str, Ints]:
    categories = {event.cat for event in events}
    annotation = {written: int(category(written) == "user_annotation") for written in categories}
    collective = np.full(len(events), -1, dtype=np.int64)
    comms = [row for row, event in enumerate(events) if event.name == _COMMS]
    if comms:
        args = arguments([events[row] for row in comms], GpuArgs)
        collective[comms] = [_collective(a, collectives) for a in args]
    return {
        "annotation": ints([annotation[event.cat] for event in events]),
        "collective": collective,
    }


def _operators(events: list[SlimEventWithArgs], shapes: _Codes, inputs: _Codes) -> dict[str, Ints]:
    args = arguments(events, OpArgs)
    dims = [bytes(a.dims) for a in args]
    given = np.full(len(events), -1, dtype=np.int64)
    attention = {event.name for event in events if _ATTENTION in event.name.lower()}
    for row in [row for row, event in enumerate(events) if event.name in attention]:
        text = bytes(args[row].inputs)
        given[row] = inputs[text.decode()] if text else -1
    return {
        "shape": ints([shapes[text.decode()] if text else -1 for text in dims]),
        "inputs": given,
        "sequence": _numbers([a.sequence for a in args]),
        "forward_thread": _numbers([a.forward_thread for a in args]),
    }


def _integer(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _numbers(values: list[int | None]) -> Ints:
    numbers = [-1 if value is None else value for value in values]
    try:
        return ints(numbers)
    except OverflowError:
        # No id of torch is that large; whatever it is, it links nothing.
        limit = 1 << 63
        return ints([value if -limit <= value < limit else -1 for value in numbers])
