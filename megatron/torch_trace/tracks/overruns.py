# SPDX-License-Identifier: Apache-2.0
"""GPU work that, as written, goes on long after the next work of its stream has begun.

A stream does one thing after another. Work that is launched early (programmatic dependent launch)
overlaps by microseconds; ROCm's tracer sometimes writes durations that are seconds too long:

    stream 7    |-- A ----------------------- 5 s ---|         |-- A --|
                          |-- B --|  |-- C --|                          |-- B --|  |-- C --|

Such a slice is cut where the next one begins; what was written is kept in its arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.format.integer_arrays import Ints, distinct
from megatron.torch_trace.tracks.lanes import LaneFinder, SliceSorter

IMPLAUSIBLE_NS = 1_000_000_000
"""Far more than any overlap that was ever seen (4 us), and than a collective waits on a stream that
a tracer took for another one."""


def clip_overruns(pieces: Iterator[Ints]) -> Iterator[tuple[Ints, list[int]]]:
    """Pieces of a GPU track with durations that end in time.

    Args:
        pieces: as `SliceSorter.tracks` gives them: rows track, ts, dur, ...; sorted by ts.

    Yields:
        Each piece, and the positions in it of slices that were cut.
    """
    held: Ints | None = None
    for piece in pieces:
        if held is not None:
            yield _clipped(held, int(piece[1, 0]))
        held = piece
    if held is not None:
        yield _clipped(held, None)


def cut_overruns(track: Ints, ts: Ints, dur: Ints) -> int:
    """The same for whole columns of GPU work, in any order; cuts `dur` in place.

    Returns:
        How many were cut.
    """
    long = dur > IMPLAUSIBLE_NS
    count = 0
    for code in distinct(track[long]).tolist():
        mine = track == code
        rows = np.flatnonzero(mine & long)
        until_next, cut = _overruns(ts[rows], dur[rows], np.sort(ts[mine]))
        dur[rows[cut]] = until_next[cut]
        count += int(cut.sum())
    return count


def _clipped(piece: Ints, following: int | None) -> tuple[Ints, list[int]]:
    ts, dur = piece[1], piece[2]
    starts = ts if following is None else np.append(ts, following)
    until_next, cut = _overruns(ts, dur, starts)
    if cut.any():
        piece = piece.copy()
        piece[2, cut] = until_next[cut]
    return piece, np.flatnonzero(cut).tolist()


def _overruns(ts: Ints, dur: Ints, starts: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Time to the next start on the track, and which slices go on too long after it.

    Args:
        starts: of all work of the track, sorted.
    """
    never = np.iinfo(np.int64).max
    following = np.append(starts, never)[np.searchsorted(starts, ts, side="right")]
    cut = (dur > IMPLAUSIBLE_NS) & (following < never)
    cut[cut] = (ts + dur - following)[cut] > IMPLAUSIBLE_NS
    return following - ts, cut


class Assigned(NamedTuple):
    """Slices of one track, in order.

    Args:
        track: its code.
        piece: their rows track, ts, dur, block, index.
        lanes: position in the piece -> lane, of the slices that must leave lane 0.
        cut: positions of slices that were clipped.
    """

    track: int
    piece: Ints
    lanes: dict[int, int]
    cut: list[int]


def assign_lanes(sorter: SliceSorter, clip: Collection[int] = ()) -> Iterator[Assigned]:
    """All slices with lanes on which none cross, piece by piece.

    Args:
        clip: codes of tracks whose overruns are cut first.
    """
    for track, pieces in sorter.tracks():
        finder = LaneFinder()
        ended = clip_overruns(pieces) if track in clip else ((piece, []) for piece in pieces)
        for piece, cut in ended:
            yield Assigned(track, piece, finder.lanes(piece[1], piece[2]), cut)
