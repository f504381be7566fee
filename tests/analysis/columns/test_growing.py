# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megatron.torch_trace.columns.growing_column import GrowingColumn
from megatron.torch_trace.columns.intervals import ints

NOTHING = -1
pieces = st.lists(st.one_of(st.lists(st.integers(-5, 100), max_size=30), st.integers(0, 30)))


@given(pieces)
def test_a_column_is_what_was_added_behind_each_other(added: list[list[int] | int]) -> None:
    column = GrowingColumn(np.int32, NOTHING)
    expected: list[int] = []
    for piece in added:
        if isinstance(piece, int):
            column.add_nothing(piece)
            expected += [NOTHING] * piece
        else:
            column.add(ints(piece))
            expected += piece
    assert len(column) == len(expected)
    finished = column.finish()
    assert (finished.tolist(), finished.dtype) == (expected, np.int32)


def test_it_grows_through_many_sizes() -> None:
    column = GrowingColumn(np.int64, NOTHING)
    for number in range(300):
        column.add(np.full(number, number, dtype=np.int64))
    assert column.finish().tolist() == [number for number in range(300) for _ in range(number)]


def test_nothing_takes_no_memory() -> None:
    column = GrowingColumn(np.int64, NOTHING)
    column.add_nothing(1_000_000_000)
    finished = column.finish()
    assert (len(finished), finished[0], finished[-1]) == (1_000_000_000, NOTHING, NOTHING)
