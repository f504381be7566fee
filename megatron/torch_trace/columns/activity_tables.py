# SPDX-License-Identifier: Apache-2.0
"""The tables that the analysis needs: GPU work, calls, operators, overhead, long Python frames.

Arguments are decoded only where they are used: all of a kernel's, of an operator those of a
collective and, in traces that need them, what belongs to shapes and autograd. That is most of the
time of an analysis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from megatron.torch_trace.columns.arguments import (
    CallArgs,
    GpuArgs,
    OpArgs,
    WaitArgs,
    arguments,
    integer,
    numbers,
)
from megatron.torch_trace.columns.builder import BlockColumns, EventKind, Rows, Table
from megatron.torch_trace.columns.codes import Codes
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.columns.joined_columns import NONE
from megatron.torch_trace.format.categories import LAUNCHES
from megatron.torch_trace.format.integer_arrays import distinct
from megatron.torch_trace.gpu_record.other_devices import ASCEND, ASCEND_MARK, device_of

GPU, CALL, OP, OVERHEAD, FRAME = "gpu", "call", "op", "overhead", "frame"
WAIT = "wait"

COLUMNS: Mapping[str, tuple[str, ...]] = {
    GPU: ("start", "dur", "name", "track", "kind", "device", "stream", "correlation", "bytes",
          "collective"),
    CALL: ("start", "dur", "name", "track", "correlation"),
    OP: ("start", "dur", "name", "track", "annotation", "shape", "inputs", "sequence",
         "forward_thread", "collective"),
    OVERHEAD: ("start", "dur", "name", "track"),
    FRAME: ("start", "dur", "name", "track"),
    WAIT: ("start", "dur", "name", "track", "correlation", "stream", "waits_on", "record"),
}  # fmt: skip
CODES = ("name", "track", "shape", "inputs", "collective")

LEAST_FRAME_NS = 100_000
"""Shorter Python frames are counted only: there are millions of them."""

MODULE_FRAME = "nn.Module: "
"""Frames of modules are kept whatever their length."""

PYTHON_FUNCTIONS = ("python functions",)
"""Key in `BlockColumns.counts`: Python frames, kept or not."""

OTHER_DEVICE = "other device"
"""Begins keys in `BlockColumns.counts`: rows, by category, of no CUDA or ROCm GPU."""

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
    "src_rank",
    "dst_rank",
)

_KINDS = {"kernel": 0, "gpu_memcpy": 1, "gpu_memset": 2}
_COMMS = "record_param_comms"
_DIMS = b'"Input Dims"'
# Its FLOPs depend on whether it is causal; all others' on their shapes alone.
_ATTENTION = "att"


@dataclass(frozen=True, slots=True)
class _Plain:
    """Slices of some categories, without arguments."""

    name: str
    categories: frozenset[str]

    def wants(self, kind: EventKind) -> bool:
        return kind.phase == "X" and kind.category in self.categories

    def choose(self, rows: Rows, found: BlockColumns) -> Rows:
        return rows

    def columns(self, rows: Rows) -> dict[str, Ints]:
        return rows.common()


class _Gpu(_Plain):
    def columns(self, rows: Rows) -> dict[str, Ints]:
        args = arguments(rows.events, GpuArgs)
        pairs = list(zip(args, rows.events, strict=True))
        return rows.common() | {
            "kind": rows.of_kinds([_KINDS.get(kind.category, NONE) for kind in rows.view.kinds]),
            "device": numbers(
                [integer(e.pid) if a.device is None else a.device for a, e in pairs], NONE
            ),
            "stream": numbers(
                [integer(e.tid) if a.stream is None else a.stream for a, e in pairs], NONE
            ),
            "correlation": numbers([a.correlation for a in args], NONE),
            "bytes": np.maximum(
                numbers([None if a.bytes_ is None else integer(a.bytes_) for a in args], NONE), 0
            ),
            "collective": _collectives(args, rows.view.codes_of("collective")),
        }


class _Calls(_Plain):
    def columns(self, rows: Rows) -> dict[str, Ints]:
        args = arguments(rows.events, CallArgs)
        return rows.common() | {"correlation": numbers([a.correlation for a in args], NONE)}


class _Waits(_Plain):
    def columns(self, rows: Rows) -> dict[str, Ints]:
        args = arguments(rows.events, WaitArgs)
        return rows.common() | {
            name: numbers([getattr(one, name) for one in args], NONE)
            for name in ("correlation", "stream", "waits_on", "record")
        }


@dataclass(frozen=True, slots=True)
class _Ops(_Plain):
    """Operators and annotations.

    Args:
        decode: decode the arguments of all of them; without it shapes are found where a block
            begins with them, and there are no sequence numbers.
        only_communication: leave out operators that are no collectives, and what they have.
    """

    decode: bool = False
    only_communication: bool = False

    def choose(self, rows: Rows, found: BlockColumns) -> Rows:
        if not self.only_communication:
            return rows
        operator = rows.of_kinds([kind.category == "cpu_op" for kind in rows.view.kinds]) == 1
        comms = [event.name == _COMMS for event in rows.events]
        return rows.only(~operator | np.array(comms, dtype=bool))

    def columns(self, rows: Rows) -> dict[str, Ints]:
        events, view = rows.events, rows.view
        collective = np.full(len(events), NONE, dtype=np.int64)
        found = rows.common()
        named = view.codes_of("name").get(_COMMS)
        comms = [] if named is None else np.flatnonzero(found["name"] == named).tolist()
        if comms:
            args = arguments([events[row] for row in comms], GpuArgs)
            collective[comms] = _collectives(args, view.codes_of("collective"))
        found |= {
            "annotation": rows.of_kinds([k.category == "user_annotation" for k in view.kinds]),
            "collective": collective,
        }
        if self.decode or any(_DIMS in bytes(event.args) for event in events[:64]):
            found |= _operators(events, view.codes_of("shape"), view.codes_of("inputs"))
        return found


class _Frames(_Plain):
    def choose(self, rows: Rows, found: BlockColumns) -> Rows:
        found.counts[PYTHON_FUNCTIONS] += len(rows.events)
        modules = [event.name.startswith(MODULE_FRAME) for event in rows.events]
        return rows.only((rows.dur >= LEAST_FRAME_NS) | np.array(modules, dtype=bool))


class _OtherDevices(_Plain):
    """Rows of devices that are no CUDA or ROCm GPU: counted, and let go."""

    def wants(self, kind: EventKind) -> bool:
        return kind.phase == "X" and (not kind.written or device_of(kind.category) is not None)

    def choose(self, rows: Rows, found: BlockColumns) -> Rows:
        for number in distinct(rows.kind).tolist():
            kind, mine = rows.view.kinds[number], rows.only(rows.kind == number)
            some = mine.events
            if not kind.written:
                some = [event for event in some if ASCEND_MARK in bytes(event.args)]
            if some:
                found.counts[OTHER_DEVICE, kind.category or ASCEND] += len(some)
        return rows.only(np.zeros(len(rows.events), dtype=bool))


def activity_tables(*, operators: bool = False) -> tuple[Table, ...]:
    """All that an analysis looks at.

    Args:
        operators: decode the arguments of all operators.
    """
    return (
        *_with_gpu(_Ops(OP, frozenset({"cpu_op", "user_annotation"}), decode=operators)),
        _Plain(OVERHEAD, frozenset({"overhead"})),
        _Waits(WAIT, frozenset({"cuda_sync"})),
        _OtherDevices("other", frozenset()),
        _Frames(FRAME, frozenset({"python_function"})),
    )


def communication_tables() -> tuple[Table, ...]:
    """What it takes to find when communication ran: no other operators, no frames."""
    return _with_gpu(_Ops(OP, frozenset({"cpu_op", "user_annotation"}), only_communication=True))


def _with_gpu(ops: _Ops) -> tuple[Table, ...]:
    return (_Gpu(GPU, frozenset(_KINDS)), _Calls(CALL, LAUNCHES), ops)


def _collectives(args: list[GpuArgs], codes: Codes) -> Ints:
    return ints(
        [
            NONE if a.name is None else codes[tuple(getattr(a, name) for name in COLLECTIVE_FIELDS)]
            for a in args
        ]
    )


def _operators(events: list[Any], shapes: Codes, inputs: Codes) -> dict[str, Ints]:
    args = arguments(events, OpArgs)
    dims = [bytes(a.dims) for a in args]
    given = np.full(len(events), NONE, dtype=np.int64)
    attention = {event.name for event in events if _ATTENTION in event.name.lower()}
    for row in [row for row, event in enumerate(events) if event.name in attention]:
        text = bytes(args[row].inputs)
        given[row] = inputs[text.decode()] if text else NONE
    return {
        "shape": ints([shapes[text.decode()] if text else NONE for text in dims]),
        "inputs": given,
        "sequence": numbers([a.sequence for a in args], NONE),
        "forward_thread": numbers([a.forward_thread for a in args], NONE),
    }
