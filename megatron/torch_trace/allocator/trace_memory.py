# SPDX-License-Identifier: Apache-2.0
"""The memory events of a trace (`--torch-profile-profile-memory`), as a snapshot would have them.

Kineto writes an event for every block that tensors take and give back, with what torch had in use
and from CUDA then. Who did it is what was open on the same thread: operators, named ranges, and
Python functions where the trace has stacks. What was in use when the window began has no stack.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from megatron.torch_trace.allocator.snapshot import (
    Action,
    Annotation,
    Blocks,
    History,
    Segments,
    Snapshot,
    State,
)
from megatron.torch_trace.allocator.stack_table import UNKNOWN_STACK, StackTable
from megatron.torch_trace.analysis.timeline.span_names import phase_of
from megatron.torch_trace.columns.block_times import block_times
from megatron.torch_trace.format.categories import category
from megatron.torch_trace.format.integer_arrays import Ints
from megatron.torch_trace.format.step_names import marks_a_step
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.format.tracks import Track
from megatron.torch_trace.reader import Trace
from megatron.torch_trace.reader.event import PlainEvent

NAME = "[memory]"
_GPU = 1
"""torch's number of the device type CUDA (c10/core/DeviceType.h); ROCm has it too."""
_RANGES = frozenset({"cpu_op", "user_annotation", "python_function"})
_FRAME = re.compile(r"(.+)\((\d+)\): (.+)")
_NUMBER = re.compile(r"(micro-batch) \d+")
_BASE = -1
"""The address of what was in use before the window."""


class MemoryArgs(msgspec.Struct, gc=False):
    """What Kineto says of a block."""

    address: int | None = msgspec.field(default=None, name="Addr")
    size: int | None = msgspec.field(default=None, name="Bytes")
    device_type: int | None = msgspec.field(default=None, name="Device Type")
    device: int | None = msgspec.field(default=None, name="Device Id")
    in_use: int | None = msgspec.field(default=None, name="Total Allocated")
    reserved: int | None = msgspec.field(default=None, name="Total Reserved")


class MemoryEvent(PlainEvent, gc=False):
    """An event with these arguments."""

    args: MemoryArgs | None = None


@dataclass(slots=True)
class _Thread:
    """Ranges (start, end, name) and memory events (time, row of `_Read.rows`) of one thread."""

    ranges: list[tuple[int, int, str]] = field(default_factory=list)
    rows: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Read:
    threads: dict[Track, _Thread] = field(default_factory=dict)
    rows: list[tuple[int, MemoryArgs]] = field(default_factory=list)
    marks: list[Annotation] = field(default_factory=list)

    def take(self, events: Any, starts: Ints, durations: Ints) -> None:
        for event, start, duration in zip(events, starts.tolist(), durations.tolist(), strict=True):
            if start == NO_TIME:
                continue
            if event.name == NAME:
                if _of_the_gpu(event.args):
                    self._thread(event).rows.append((start, len(self.rows)))
                    self.rows.append((start, event.args))
            elif event.ph == "X" and category(event.cat) in _RANGES:
                end = start + max(duration, 0)
                is_step = marks_a_step(event.name, event.cat) is not None
                if not is_step:  # in a stack it would tell every step's memory apart
                    self._thread(event).ranges.append((start, end, event.name))
                if is_step or phase_of(event.name):
                    self.marks.append(Annotation(event.name, 0, start, end))

    def _thread(self, event: MemoryEvent) -> _Thread:
        return self.threads.setdefault((event.pid, event.tid), _Thread())


def _of_the_gpu(args: MemoryArgs | None) -> bool:
    if args is None or args.device_type != _GPU:
        return False
    return None not in (args.address, args.size, args.in_use, args.reserved)


def read_trace_memory(
    path: Path, on_read: Callable[[int], None] | None = None
) -> tuple[Snapshot, int | None]:
    """Read one trace.

    Args:
        path: a trace of one rank.
        on_read: called with the bytes of each piece read from the file.

    Returns:
        What a snapshot at the end of the window would be, without addresses of segments, and the
        rank. Its history is empty where the trace has no memory events.
    """
    trace = Trace(path, on_read=on_read)
    read = _Read()
    for block in trace.blocks(MemoryEvent):
        read.take(block.events, *block_times(block))
    stacks = StackTable()
    numbers = _stack_numbers(read, stacks)
    base = trace.metadata.base_time_ns
    order = sorted(range(len(read.rows)), key=lambda row: read.rows[row][0])
    rows = [(base + read.rows[row][0], read.rows[row][1], numbers[row]) for row in order]
    devices = sorted({args.device or 0 for _, args, _ in rows})
    histories = [_History([r for r in rows if (r[1].device or 0) == one]) for one in devices]
    columns = [
        [(device, *entry) for entry in history.entries()]
        for device, history in zip(devices, histories, strict=True)
    ]
    table = np.array([row for part in columns for row in part], dtype=np.int64).reshape(-1, 7)
    history = History(*(np.ascontiguousarray(table[:, n]) for n in range(7)))
    segments, blocks = _at_the_end(devices, histories)
    marks = tuple(
        Annotation(one.name, 0, base + one.start, base + (one.end or 0))
        for one in sorted(read.marks, key=lambda one: one.start)
    )
    snapshot = Snapshot(
        path,
        segments,
        blocks,
        history,
        marks,
        stacks,
        cut_short=bool(trace.damage),
        has_blocks=False,
    )
    return snapshot, trace.metadata.rank


def _stack_numbers(read: _Read, stacks: StackTable) -> list[int]:
    """Of each memory event what was open around it, as the number of a stack."""
    numbers = [UNKNOWN_STACK] * len(read.rows)
    for thread in read.threads.values():
        thread.ranges.sort(key=lambda one: (one[0], -one[1]))
        opened: list[tuple[int, str]] = []
        at = 0
        for time, row in sorted(thread.rows):
            while at < len(thread.ranges) and thread.ranges[at][0] <= time:
                start, end, name = thread.ranges[at]
                while opened and opened[-1][0] <= start:
                    opened.pop()
                opened.append((end, name))
                at += 1
            while opened and opened[-1][0] <= time:
                opened.pop()
            if opened:
                numbers[row] = stacks.number_of(tuple(_frame(name) for _, name in reversed(opened)))
    return numbers


def _frame(name: str) -> str:
    """`file.py:7 function` of `file.py(7): function`, a range without its micro-batch's number."""
    found = _FRAME.fullmatch(name)
    return f"{found[1]}:{found[2]} {found[3]}" if found else _NUMBER.sub(r"\1", name)


class _History:
    """One device's entries, and what is left at their end.

    Args:
        rows: time in ns, arguments and stack of each memory event, by time.
    """

    def __init__(self, rows: list[tuple[int, MemoryArgs, int]]) -> None:
        self._rows = rows
        self.left: dict[int, tuple[int, int]] = {}
        self.reserved = 0
        self.base = 0

    def entries(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """action, address, size, stream, time and stack, as `History` has them."""
        freed_of_base = 0
        for number, (time, args, stack) in enumerate(self._rows):
            address, size = args.address or 0, args.size or 0
            reserved = args.reserved or 0
            if number == 0:
                self.reserved = reserved
                self.base = (args.in_use or 0) - size
            elif reserved != self.reserved:
                grows = reserved > self.reserved
                action = Action.SEGMENT_ALLOC if grows else Action.SEGMENT_FREE
                yield (action, 0, abs(reserved - self.reserved), 0, time, UNKNOWN_STACK)
                self.reserved = reserved
            if size >= 0:
                self.left[address] = (size, stack)
                yield (Action.ALLOC, address, size, 0, time, stack)
            else:
                if self.left.pop(address, None) is None:
                    freed_of_base -= size
                yield (Action.FREE_REQUESTED, address, -size, 0, time, stack)
        # What is freed of it has entries of its own.
        self.base = max(0, self.base - freed_of_base)


def _at_the_end(devices: list[int], histories: list[_History]) -> tuple[Segments, Blocks]:
    segments: list[tuple[int, ...]] = []
    blocks: list[tuple[int, ...]] = []
    for row, (device, history) in enumerate(zip(devices, histories, strict=True)):
        segments.append((device, _BASE, history.reserved, 0, 0, 0))
        blocks.append((row, _BASE, history.base, history.base, State.ALLOCATED, UNKNOWN_STACK))
        blocks += [
            (row, address, size, size, State.ALLOCATED, stack)
            for address, (size, stack) in history.left.items()
        ]
        used = history.base + sum(size for size, _ in history.left.values())
        free = max(0, history.reserved - used)
        blocks.append((row, _BASE, free, free, State.FREE, UNKNOWN_STACK))
    return Segments(*_columns(segments, 6)), Blocks(*_columns(blocks, 6))


def _columns(rows: list[tuple[int, ...]], count: int) -> list[Ints]:
    table = np.array(rows, dtype=np.int64).reshape(-1, count)
    return [np.ascontiguousarray(table[:, n]) for n in range(count)]
