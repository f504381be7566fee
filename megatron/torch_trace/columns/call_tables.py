# SPDX-License-Identifier: Apache-2.0
"""The tables of a call tree: every slice of the CPU, GPU rows by their operator, memory events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from megatron.torch_trace.columns.arguments import arguments, integer, numbers
from megatron.torch_trace.columns.builder import BlockColumns, EventKind, Rows, Table
from megatron.torch_trace.columns.intervals import Ints
from megatron.torch_trace.columns.joined_columns import NONE
from megatron.torch_trace.format.categories import GPU_WORK, LAUNCHES

CPU, GPU, MEMORY = "cpu", "gpu", "memory"
OPERATOR, ANNOTATION, PYTHON, CALL = range(4)
"""Kinds of slices of the CPU."""
WORK, GPU_ANNOTATION = range(2)
"""Kinds of slices of the GPU."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    CPU: ("start", "dur", "name", "track", "kind", "external_id", "sequence", "forward_thread"),
    GPU: ("start", "dur", "name", "track", "kind", "external_id"),
    MEMORY: ("start", "bytes", "kind"),
}
CODES = ("name", "track")

MEMORY_EVENT = "[memory]"
_CPU_KINDS = {
    "cpu_op": OPERATOR,
    "user_annotation": ANNOTATION,
    "python_function": PYTHON,
    "overhead": CALL,
} | dict.fromkeys(LAUNCHES, CALL)
_GPU_KINDS = dict.fromkeys(GPU_WORK, WORK) | {"gpu_user_annotation": GPU_ANNOTATION}
_ON_THE_CPU = (0, 5, 6)
"""Numbers of torch's device types for memory of the host: CPU, MKLDNN, IDEEP."""


class _OperatorArgs(msgspec.Struct, gc=False):
    external_id: int | None = msgspec.field(default=None, name="External id")
    sequence: int | None = msgspec.field(default=None, name="Sequence number")
    forward_thread: int | None = msgspec.field(default=None, name="Fwd thread id")


class _MemoryArgs(msgspec.Struct, gc=False):
    bytes_: int | str | None = msgspec.field(default=None, name="Bytes")
    device_type: int | None = msgspec.field(default=None, name="Device Type")


class _Slices:
    """Slices of some categories, by their kind."""

    def __init__(self, name: str, kinds: Mapping[str, int]) -> None:
        self.name = name
        self._kinds = kinds

    def wants(self, kind: EventKind) -> bool:
        return kind.phase == "X" and kind.category in self._kinds

    def choose(self, rows: Rows, found: BlockColumns) -> Rows:
        return rows

    def columns(self, rows: Rows) -> dict[str, Ints]:
        kind = rows.of_kinds([self._kinds.get(k.category, NONE) for k in rows.view.kinds])
        found = rows.common() | {"kind": kind}
        # Nothing is asked of calls and of Python's functions, which are most of a trace.
        asked = np.flatnonzero(kind < PYTHON)
        args = arguments([rows.events[row] for row in asked.tolist()], _OperatorArgs)
        for column in COLUMNS[self.name]:
            if column in _OperatorArgs.__struct_fields__:
                found[column] = np.full(len(kind), NONE, dtype=np.int64)
                found[column][asked] = numbers([getattr(a, column) for a in args], NONE)
        return found


class _Memory:
    """What torch notes with `profile_memory`: so many bytes taken, or given back."""

    name = MEMORY

    def wants(self, kind: EventKind) -> bool:
        return kind.phase in ("i", "I") and kind.category == "cpu_instant_event"

    def choose(self, rows: Rows, found: BlockColumns) -> Rows:
        mine = [event.name == MEMORY_EVENT for event in rows.events]
        return rows.only(np.array(mine, dtype=bool))

    def columns(self, rows: Rows) -> dict[str, Ints]:
        args: list[Any] = arguments(rows.events, _MemoryArgs)
        on_gpu = [a.device_type not in (None, *_ON_THE_CPU) for a in args]
        return {
            "start": rows.start,
            "bytes": numbers([integer(a.bytes_) for a in args], 0),
            "kind": np.array(on_gpu, dtype=np.int64),
        }


def call_tables() -> tuple[Table, ...]:
    """All that a call tree needs."""
    return (_Slices(CPU, _CPU_KINDS), _Slices(GPU, _GPU_KINDS), _Memory())
