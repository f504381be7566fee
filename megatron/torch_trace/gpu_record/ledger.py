# SPDX-License-Identifier: Apache-2.0
"""Launches and GPU rows of a trace that is read once, block by block, in bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.format.categories import (
    awaits_device,
    begins_capture,
    ends_capture,
    is_kernel_launch,
)
from megatron.torch_trace.format.integer_arrays import Ints
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.gpu_record.captures import Captures
from megatron.torch_trace.gpu_record.clock import ClockOffset, apart_from_cpu, find_offset
from megatron.torch_trace.gpu_record.duplicates import written_again
from megatron.torch_trace.reader import SlimEvent

MOST_ROWS = 1 << 20
"""Of calls, and of GPU rows: of a trace of several GB the first ones tell enough."""

_NOTHING = np.zeros((0, 0), dtype=np.int64)
_EXTERNAL = 1 << 62
"""`External id`s from here on, correlations below."""


@dataclass(slots=True)
class BlockRecord:
    """What one block contributes, as rows of numbers; times in ns, words as their checksums.

    Args:
        calls: id, start, whether it launches kernels; of calls with an id.
        gpu: id, start, duration, stream, name; of GPU rows.
        begins, ends: start, thread; of captures. waits: start, end; of calls that wait for the
            device.
        cpu_end: the last end of a call, an operator or an annotation; None without any.
        devices: numbers of the GPUs that have rows.
    """

    calls: Ints = field(default_factory=lambda: _NOTHING.reshape(0, 3))
    gpu: Ints = field(default_factory=lambda: _NOTHING.reshape(0, 5))
    begins: Ints = field(default_factory=lambda: _NOTHING.reshape(0, 2))
    ends: Ints = field(default_factory=lambda: _NOTHING.reshape(0, 2))
    waits: Ints = field(default_factory=lambda: _NOTHING.reshape(0, 2))
    cpu_end: int | None = None
    devices: set[int] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        events: Sequence[SlimEvent],
        times: tuple[Ints, Ints],
        calls: npt.NDArray[np.bool_],
        gpu: npt.NDArray[np.bool_],
        cpu: npt.NDArray[np.bool_],
    ) -> BlockRecord:
        """The record of a block, of which the masks say what kind an event is."""
        ts, dur = times
        there = ts != NO_TIME
        length = np.where(dur == NO_TIME, 0, np.maximum(dur, 0))
        own = cls()
        # A block of arrows, of which half of the blocks are, has neither.
        if (some := np.flatnonzero(calls & there)).size:
            own._take_calls(events, some, ts, length)
        if (some := np.flatnonzero(gpu & there)).size:
            own._take_gpu(events, some, ts, length)
        on_cpu = cpu & there
        if on_cpu.any():
            own.cpu_end = int((ts + length)[on_cpu].max())
        return own

    def _take_calls(self, events: Sequence[SlimEvent], rows: Ints, ts: Ints, length: Ints) -> None:
        some = [events[row] for row in rows.tolist()]
        roles = _Roles()
        codes = np.fromiter([roles[event.name] for event in some], np.int64, len(some))
        ids = _ids(some)
        starts = ts[rows]
        self.calls = _columns(ids, starts, codes == _LAUNCH)[ids > 0]
        if not {_BEGIN, _END, _WAIT} & set(roles.values()):
            return
        begin, end, wait = (np.flatnonzero(codes == role) for role in (_BEGIN, _END, _WAIT))
        self.begins, self.ends = (
            _columns(starts[mine], _Checksums().of([(some[at].pid, some[at].tid) for at in mine]))
            for mine in (begin, end)
        )
        self.waits = _columns(starts[wait], starts[wait] + length[rows[wait]])

    def _take_gpu(self, events: Sequence[SlimEvent], rows: Ints, ts: Ints, length: Ints) -> None:
        some = [events[row] for row in rows.tolist()]
        pids = [event.pid for event in some]
        own = [None if event.args is None else event.args.stream for event in some]
        lanes = own
        if None in own:
            lanes = [
                event.tid if stream is None else stream
                for event, stream in zip(some, own, strict=True)
            ]
        self.gpu = _columns(
            _ids(some),
            ts[rows],
            length[rows],
            _Checksums().of(list(zip(pids, lanes, strict=True))),
            _Checksums().of([event.name for event in some]),
        )
        self.devices = {
            pid
            for pid, stream in set(zip(pids, own, strict=True))
            if stream is not None and type(pid) is int
        }


class Ledger:
    """The blocks of a trace together.

    Attributes:
        captured: launches into a graph; captured_at: when they were, ns.
        offset: of the GPU's clock, if it is another.
        duplicates: GPU rows that are written again.
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[Ints]] = {
            name: [] for name in ("calls", "gpu", "begins", "ends", "waits")
        }
        self._cpu_end: int | None = None
        self.captured_at: Ints = np.zeros(0, dtype=np.int64)
        self.offset: ClockOffset | None = None
        self.duplicates = 0

    def add(self, part: BlockRecord) -> None:
        """One block more, in the order of the file."""
        for name, parts in self._parts.items():
            rows: Ints = getattr(part, name)
            room = MOST_ROWS - sum(map(len, parts))
            if len(rows) and room > 0:
                parts.append(rows[:room])
        if part.cpu_end is not None:
            self._cpu_end = max(part.cpu_end, self._cpu_end or part.cpu_end)

    def finish(self, *, several_devices: bool) -> None:
        """Judge what was gathered."""
        calls, gpu = self._all("calls", 3), self._all("gpu", 5)
        begins, ends, waits = (self._all(name, 2) for name in ("begins", "ends", "waits"))
        self._parts.clear()
        self.duplicates = int(written_again(*gpu[:, [1, 2, 3, 4, 0]].T).sum())
        captures = Captures.of((begins[:, 0], begins[:, 1]), (ends[:, 0], ends[:, 1]))
        if len(captures):
            mine = calls[:, 2].astype(bool) & ~np.isin(calls[:, 0], gpu[:, 0])
            mine &= captures.hold(calls[:, 1])
            self.captured_at = calls[mine, 1]
        order = np.lexsort((calls[:, 1], calls[:, 0]))
        ids, first = np.unique(calls[order, 0], return_index=True)
        if len(ids) and len(gpu):
            at = np.minimum(np.searchsorted(ids, gpu[:, 0]), len(ids) - 1)
            known = ids[at] == gpu[:, 0]
            launched = calls[order[first[at[known]]], 1]
        else:
            known, launched = np.zeros(len(gpu), dtype=bool), calls[:0, 1]
        if several_devices:
            waits = waits[:0]
        apart = apart_from_cpu(gpu[:, 1], gpu[:, 1] + gpu[:, 2], launched, self._cpu_end)
        self.offset = find_offset(
            launched,
            gpu[known, 1],
            gpu[known, 1] + gpu[known, 2],
            gpu[known, 3],
            (waits[:, 0], waits[:, 1]),
            apart,
        )

    def _all(self, name: str, columns: int) -> Ints:
        return np.concatenate([_NOTHING.reshape(0, columns), *self._parts[name]])


_LAUNCH, _BEGIN, _END, _WAIT, _OTHER = range(5)


class _Roles(dict[str, int]):
    """Name of a call -> what it means here, asked once a block."""

    def __missing__(self, name: str) -> int:
        role = _OTHER
        for code, means in (
            (_LAUNCH, is_kernel_launch),
            (_BEGIN, begins_capture),
            (_END, ends_capture),
            (_WAIT, awaits_device),
        ):
            if means(name):
                role = code
        self[name] = role
        return role


def _columns(*columns: npt.NDArray[Any]) -> Ints:
    table = np.empty((len(columns[0]), len(columns)), dtype=np.int64)
    for number, column in enumerate(columns):
        table[:, number] = column
    return table


def _ids(events: Sequence[SlimEvent]) -> Ints:
    """Correlations; where there is none, what a call and its work have in common instead."""
    found = [0 if event.args is None else event.args.correlation or 0 for event in events]
    if found and min(found) > 0 and max(found) < _EXTERNAL:
        return np.fromiter(found, np.int64, len(found))
    return np.array(
        [
            own if 0 < own < _EXTERNAL else _external_id(event)
            for own, event in zip(found, events, strict=True)
        ],
        dtype=np.int64,
    )


def _external_id(event: SlimEvent) -> int:
    other = event.args and event.args.external_id
    return _EXTERNAL + other if other and 0 < other < _EXTERNAL else 0


class _Checksums(dict[object, int]):
    """Word -> its checksum, computed once a block: `checksums[word]`."""

    def __missing__(self, word: object) -> int:
        self[word] = zlib.crc32(repr(word).encode(errors="replace"))
        return self[word]

    def of(self, words: Sequence[object]) -> Ints:
        return np.fromiter(map(self.__getitem__, words), np.int64, len(words))
