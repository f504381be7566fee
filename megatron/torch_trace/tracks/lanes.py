# SPDX-License-Identifier: Apache-2.0
"""Slices that cross others of their track, found in bounded memory, and lanes on which none cross.

Perfetto before v57 drops a slice that begins inside another and ends after it:

    stream 7    |----- A -----|                 lane 0    |----- A -----|
                          |----- B -----|       lane 1                |----- B -----|

A trace may hold more slices than memory: sorted runs go to disk and are merged track by track.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.format.integer_arrays import Ints

_RUN_ROWS = 400_000
_WINDOW_ROWS = 1 << 15
_COLUMNS = 5
_TIME_BITS = 50
"""13 days of nanoseconds."""


class SliceSorter:
    """Collect slices in any order; give them back track by track, by start, longest first.

    Args:
        folder: where to put what does not fit into memory; None for the system's choice.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._parts: list[Ints] = []
        self._rows = 0
        self._runs: list[_Run] = []

    def add(self, track: Ints, ts: Ints, dur: Ints, block: int, index: Ints) -> None:
        """Add slices of one block; times in ns, `index` their indices in the block."""
        rows = np.empty((_COLUMNS, len(ts)), dtype=np.int64)
        rows[0], rows[1], rows[2], rows[3], rows[4] = track, ts, dur, block, index
        self._parts.append(rows)
        self._rows += len(ts)
        if self._rows >= _RUN_ROWS:
            self._runs.append(_Run(self._sorted(), self._folder))

    def _sorted(self) -> Ints:
        rows = np.concatenate(self._parts, axis=1) if self._parts else np.empty((_COLUMNS, 0), int)
        self._parts, self._rows = [], 0
        return rows[:, order_of(*rows[:3])]

    def tracks(self) -> Iterator[tuple[int, Iterator[Ints]]]:
        """(track, its slices in pieces), each piece the five rows track, ts, dur, block, index."""
        rest = self._sorted()
        if not self._runs:
            yield from _split_tracks(rest)
            return
        self._runs.append(_Run(rest, self._folder))
        for track in sorted({track for run in self._runs for track in run.bounds}):
            segments = [run.segment(track) for run in self._runs if track in run.bounds]
            yield track, _merge(segments)

    def close(self) -> None:
        """Remove what was put on disk."""
        for run in self._runs:
            run.file.close()


def order_of(track: Ints, ts: Ints, dur: Ints) -> NDArray[np.intp]:
    """Indices of slices by track, start, longest first: np.lexsort in a sixth of the time.

    Track and start make one number where they fit; few slices have both in common.
    """
    if not len(ts):
        return np.empty(0, dtype=np.intp)
    earliest = int(ts.min())
    if int(ts.max()) - earliest >= 1 << _TIME_BITS or int(track.max()) >= 1 << 63 - _TIME_BITS:
        return np.lexsort((-dur, ts, track))
    key = (track << _TIME_BITS) + (ts - earliest)
    order = np.argsort(key, kind="stable")
    key = key[order]
    same = key[1:] == key[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    rest = order[tied]
    order[tied] = rest[np.lexsort((-dur[rest], key[tied]))]
    return order


def _split_tracks(rows: Ints) -> Iterator[tuple[int, Iterator[Ints]]]:
    for track, (start, end) in _bounds_by_track(rows).items():
        pieces = range(start, end, _WINDOW_ROWS)
        yield track, (rows[:, at : min(at + _WINDOW_ROWS, end)] for at in pieces)


def _bounds_by_track(rows: Ints) -> dict[int, tuple[int, int]]:
    """Track -> where its rows begin and end, in rows sorted by track."""
    tracks, starts = np.unique(rows[0], return_index=True)
    bounds = [*starts.tolist(), rows.shape[1]]
    return {track: (bounds[n], bounds[n + 1]) for n, track in enumerate(tracks.tolist())}


class _Run:
    """Sorted slices in a nameless file, row after row."""

    def __init__(self, rows: Ints, folder: Path | None) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self.file.write(np.ascontiguousarray(rows.T).tobytes())
        self.bounds = _bounds_by_track(rows)

    def segment(self, track: int) -> _Segment:
        return _Segment(self.file, *self.bounds[track])


class _Segment:
    """The slices of one track in one run, a window at a time."""

    def __init__(self, file: IO[bytes], start: int, end: int) -> None:
        self.file = file
        self.next, self.end = start, end
        self.window: Ints = np.empty((_COLUMNS, 0), dtype=np.int64)

    @property
    def exhausted(self) -> bool:
        return self.next >= self.end

    def extend(self) -> None:
        count = min(_WINDOW_ROWS, self.end - self.next)
        self.file.seek(self.next * _COLUMNS * 8)
        data = self.file.read(count * _COLUMNS * 8)
        more = np.frombuffer(data, dtype=np.int64).reshape(count, _COLUMNS).T
        self.window = np.concatenate([self.window, more], axis=1)
        self.next += count

    def take_before(self, ts: int | None) -> Ints:
        """Rows that start before `ts`; all if it is None."""
        count = self.window.shape[1] if ts is None else int(np.searchsorted(self.window[1], ts))
        taken, self.window = self.window[:, :count], self.window[:, count:]
        return taken


def _merge(segments: list[_Segment]) -> Iterator[Ints]:
    while True:
        for segment in segments:
            if not segment.exhausted and segment.window.shape[1] < _WINDOW_ROWS // 2:
                segment.extend()
        # Up to the earliest start that some run has not shown yet, everything is in sight.
        unseen = [int(s.window[1][-1]) for s in segments if not s.exhausted]
        limit = min(unseen) if unseen else None
        rows = np.concatenate([s.take_before(limit) for s in segments], axis=1)
        if rows.shape[1]:
            yield rows[:, order_of(*rows[:3])]
        elif limit is not None:
            # A whole window of slices with the same start.
            for segment in segments:
                if not segment.exhausted:
                    segment.extend()
        if limit is None:
            return


class LaneFinder:
    """Which slices of one track must move to which lane; keeps its state between pieces."""

    def __init__(self) -> None:
        self._stacks: list[list[int]] = [[]]

    def lanes(self, ts: Ints, dur: Ints) -> dict[int, int]:
        """Position in the arrays -> lane, only for slices that leave lane 0.

        Args:
            ts, dur: sorted by (ts, -dur), following what was given before.
        """
        ends = ts + np.maximum(dur, 0)
        if len(ts) == 1 and not self._stacks[0]:
            # Of a hundred thousand threads most have one slice, and the search below takes longer.
            self._stacks[0] = ends[ends > ts].tolist()
            return {}
        if not len(ts) or self._all_nest(ts, ends):
            return {}
        first = self._stacks[0]
        moved: dict[int, int] = {}
        for position, (start, end) in enumerate(zip(ts.tolist(), ends.tolist(), strict=True)):
            while first and first[-1] <= start:
                first.pop()
            if not first or end <= first[-1]:
                first.append(end)
            else:
                moved[position] = self._other_lane(start, end)
        return moved

    def _all_nest(self, ts: Ints, ends: Ints) -> bool:
        """Whether lane 0 takes them all, as it mostly does; if so, it has."""
        open_ends = np.array(self._stacks[0], dtype=np.int64)
        ends = np.concatenate([open_ends, ends])
        before = np.full(len(open_ends), np.iinfo(np.int64).min)
        if _any_cross(np.concatenate([before, ts]), ends):
            return False
        self._stacks[0] = ends[ends > ts[-1]].tolist()
        return True

    def _other_lane(self, start: int, end: int) -> int:
        for lane, stack in enumerate(self._stacks):
            if lane == 0:
                continue
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or end <= stack[-1]:
                stack.append(end)
                return lane
        self._stacks.append([end])
        return len(self._stacks) - 1


def _any_cross(ts: Ints, ends: Ints) -> bool:
    """Whether a slice begins inside another and ends after it.

    None does if no slice that begins inside one, and these are its next neighbours, has a later
    end. Largest ends of 1, 2, 4, ... neighbours answer that for all slices at once.
    """
    own = np.arange(len(ts))
    behind = np.searchsorted(ts, ends)
    levels = np.frexp(np.maximum(behind - own, 1))[1] - 1
    largest = ends
    for level in range(int(levels.max()) + 1):
        width = 1 << level
        if level:
            largest = np.maximum(largest[: -width // 2], largest[width // 2 :])
        asked = np.flatnonzero(levels == level)
        if not level:
            asked = asked[behind[asked] > asked]
        latest = np.maximum(largest[asked], largest[behind[asked] - width])
        if (latest > ends[asked]).any():
            return True
    return False
