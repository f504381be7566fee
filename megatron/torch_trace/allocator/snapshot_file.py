# SPDX-License-Identifier: Apache-2.0
"""Reading an allocator snapshot: `memory_snapshot.pickle`, plain or compressed, of any torch."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from megatron.torch_trace.allocator.history.entries import Entries, int_of, text_of, time_of
from megatron.torch_trace.allocator.snapshot import (
    Annotation,
    Blocks,
    History,
    Segments,
    Snapshot,
    State,
)
from megatron.torch_trace.allocator.stack_table import StackTable
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.format.integer_arrays import Ints
from megatron.torch_trace.pickles.pickle_bytes import NotPlainError
from megatron.torch_trace.pickles.plain_pickle import PlainPickle
from megatron.torch_trace.pickles.rows import Rows
from megatron.torch_trace.reader.bytestream import ByteStream

_STATES = {
    "active_allocated": State.ALLOCATED,
    "active_pending_free": State.PENDING_FREE,
    "active_awaiting_free": State.PENDING_FREE,
    "inactive": State.FREE,
}


def read_snapshot(path: Path, on_read: Callable[[int], None] | None = None) -> Snapshot:
    """Read one.

    Args:
        path: the file.
        on_read: called with the bytes of each piece read from the file.

    Raises:
        UsageError: it is no allocator snapshot, or a pickle of more than plain data.
    """
    stream = ByteStream(path, on_read)
    reading = _Reading()
    pickle = PlainPickle(stream, reading.take, as_rows=True)
    try:
        root = pickle.value()
    except NotPlainError as error:
        raise UsageError(
            f"{path}: {error}; a snapshot is what torch.cuda.memory._dump_snapshot writes."
        ) from None
    # A list before torch 2.0, and from torch.cuda.memory_snapshot().
    if isinstance(root, list) and all("total_size" in one for one in _dicts(root) or [{}]):
        root = {"segments": root}
    if not isinstance(root, dict) or not ({"segments", "device_traces"} & root.keys()):
        raise UsageError(f"{path}: a pickle, but not of the allocator: no segments, no history.")
    return _snapshot(path, root, reading, cut_short=pickle.cut_short or bool(stream.damage))


def snapshot_of(contents: dict[str, Any], path: Path) -> Snapshot:
    """The same of a snapshot that is no file yet.

    Args:
        contents: what `torch.cuda.memory._snapshot()` returns.
        path: the file that it will be.
    """
    reading = _Reading()
    for trace in contents.get("device_traces") or ():
        reading.take(trace, trace)
    return _snapshot(path, contents, reading, cut_short=False)


def _snapshot(path: Path, root: dict[str, Any], reading: _Reading, *, cut_short: bool) -> Snapshot:
    segments, blocks = reading.segments(_dicts(root.get("segments")))
    return Snapshot(
        path=path,
        segments=segments,
        blocks=blocks,
        history=reading.history(root.get("device_traces")),
        annotations=tuple(_annotations(reading, _dicts(root.get("external_annotations")))),
        stacks=reading.stacks,
        settings=_settings(root.get("allocator_settings")),
        cut_short=cut_short,
        odd=reading.odd,
    )


class _Columns:
    """Whole numbers, row by row, for so many arrays."""

    def __init__(self, count: int) -> None:
        self._values = array("q")
        self._count = count

    def add(self, *row: int) -> None:
        # As an array first: a number too large for it leaves no half of a row behind.
        self._values.extend(array("q", row))

    def arrays(self) -> list[Ints]:
        """The columns; the rows are let go, which would be as large again."""
        table = np.frombuffer(self._values, dtype=np.int64).reshape(-1, self._count)
        found = [np.ascontiguousarray(table[:, n]) for n in range(self._count)]
        del table
        self._values = array("q")
        return found


class _Reading:
    def __init__(self) -> None:
        self.stacks = StackTable()
        self.odd = 0
        self._traces: list[tuple[list[Any], Entries]] = []

    def take(self, into: list[Any], items: list[Any]) -> bool:
        """Entries of a history, as they are read."""
        first = items[0] if items else None
        if not isinstance(first, (dict, Rows)) or "action" not in first:
            return False
        entries = next((held for trace, held in self._traces if trace is into), None)
        if entries is None:
            entries = Entries(self.stacks)
            self._traces.append((into, entries))
        for one in items:
            if isinstance(one, Rows):
                entries.add_rows(one)
            else:
                entries.add(one)
        return True

    def history(self, traces: Any) -> History:
        """All devices' entries: torch keeps one list for each."""
        found = traces if isinstance(traces, (list, tuple)) else ()
        of = {id(trace): number for number, trace in enumerate(found)}
        parts = []
        for index, (trace, entries) in enumerate(self._traces):
            self.odd += entries.odd
            number = of.get(id(trace), index)
            columns = entries.columns()
            device = np.broadcast_to(np.array(number, np.min_scalar_type(number)), len(columns[0]))
            parts.append([device, *columns])
        if not parts:
            return History(*(np.zeros(0, dtype=np.int64) for _ in range(7)))
        if len(parts) == 1:
            return History(*parts[0])
        return History(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def segments(self, found: list[dict[str, Any]]) -> tuple[Segments, Blocks]:
        """The segments and their blocks."""
        segments, blocks = _Columns(6), _Columns(6)
        pools: dict[Any, int] = {(0, 0): 0}
        row = 0
        for one in found:
            try:
                pool = tuple(map(int_of, one.get("segment_pool_id", (0, 0))))
                segments.add(
                    int_of(one.get("device", 0)),
                    int_of(one.get("address", 0)),
                    int_of(one["total_size"]),
                    int_of(one.get("stream", 0)),
                    pools.setdefault(pool, len(pools)),
                    int(bool(one.get("is_expandable"))),
                )
            except (TypeError, KeyError, OverflowError):
                self.odd += 1
                continue
            self._blocks(blocks, row, int_of(one.get("address", 0)), _dicts(one.get("blocks")))
            row += 1
        return Segments(*segments.arrays()), Blocks(*blocks.arrays())

    def _blocks(self, into: _Columns, row: int, at: int, found: list[dict[str, Any]]) -> None:
        for one in found:
            try:
                size = int_of(one["size"])
                frames, requested = one.get("frames"), one.get("requested_size", size)
                # Before torch 2.1 what a block is for stands in its history.
                for past in _dicts(one.get("history"))[:1]:
                    frames = frames or past.get("frames")
                    requested = past.get("real_size", requested)
                state = _STATES.get(text_of(one.get("state", "")), State.ALLOCATED)
                start = int_of(one.get("address", at))
                into.add(row, start, size, int_of(requested), state, self.stacks.number(frames))
                at = start + size
            except (TypeError, KeyError, OverflowError):
                self.odd += 1


def _annotations(reading: _Reading, found: list[dict[str, Any]]) -> Iterator[Annotation]:
    """Ranges from their begins and ends, which nest by name."""
    open_at: dict[tuple[str, int], list[int]] = {}
    ranges = []
    for one in found:
        try:
            name, device = text_of(one.get("name", "")), int_of(one.get("device", 0))
            time = time_of(one)
        except (TypeError, OverflowError):
            reading.odd += 1
            continue
        if one.get("stage") == "START":
            open_at.setdefault((name, device), []).append(time)
        elif open_at.get((name, device)):
            ranges.append(Annotation(name, device, open_at[(name, device)].pop(), time))
    for (name, device), starts in open_at.items():
        ranges += [Annotation(name, device, start, None) for start in starts]
    yield from sorted(ranges, key=lambda one: (one.start, -(one.end or 1 << 62)))


def _dicts(value: Any) -> list[dict[str, Any]]:
    found = value if isinstance(value, (list, tuple)) else ()
    return [one for one in found if isinstance(one, dict)]


def _settings(value: Any) -> dict[str, Any]:
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}
