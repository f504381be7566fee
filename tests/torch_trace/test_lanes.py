# SPDX-License-Identifier: Apache-2.0
"""Slices in order and on lanes on which none cross."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron.torch_trace.tracks import lanes
from megatron.torch_trace.tracks.lanes import LaneFinder, SliceSorter, order_of
from megatron.torch_trace.tracks.overruns import assign_lanes

TIMES = st.one_of(st.integers(0, 5), st.sampled_from([-(1 << 61), 1 << 49, 1 << 50, 1 << 61]))


@given(
    rows=st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 1 << 12, 1 << 13]), TIMES, st.integers(-2, 5)),
        max_size=30,
    )
)
def test_slices_are_in_the_order_of_track_start_and_longest_first(
    rows: list[tuple[int, int, int]],
) -> None:
    track, ts, dur = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    expected = sorted(range(len(rows)), key=lambda i: (rows[i][0], rows[i][1], -rows[i][2]))
    assert order_of(track, ts, dur).tolist() == expected


@settings(max_examples=200, deadline=None)
@given(
    slices=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 20)), max_size=40
    ),
    rows=st.sampled_from([3, 1000]),
)
def test_on_no_lane_does_a_slice_cross_another(
    slices: list[tuple[int, int, int]], rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Small runs and windows: the merging of what lies on disk is what is tested.
        patch.setattr(lanes, "_RUN_ROWS", rows)
        patch.setattr(lanes, "_WINDOW_ROWS", 2 if rows == 3 else 1000)
        sorter = SliceSorter()
        for number, (track, ts, dur) in enumerate(slices):
            one = [np.array([v], dtype=np.int64) for v in (track, ts, dur)]
            sorter.add(*one, 0, np.array([number], dtype=np.int64))
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        seen = []
        for track, piece, moved, _ in assign_lanes(sorter):
            for position in range(piece.shape[1]):
                start = int(piece[1, position])
                seen.append(int(piece[4, position]))
                row = (track, moved.get(position, 0))
                found.setdefault(row, []).append((start, start + int(piece[2, position])))
        sorter.close()
    assert sorted(seen) == list(range(len(slices)))
    for lane in found.values():
        for a, b in lane:
            assert not any(a < c < b < d for c, d in lane)


def test_the_first_lane_keeps_all_that_nests() -> None:
    ts, dur = np.array([0, 0, 10, 20, 25]), np.array([100, 5, 10, 10, 10])
    assert LaneFinder().lanes(ts, dur) == {4: 1}
