# SPDX-License-Identifier: Apache-2.0
"""Calls of ranks side by side, by the number that each rank gives them."""

from __future__ import annotations

import pytest

from megatron.torch_trace.analysis.communication.call_order import by_number
from megatron.torch_trace.columns.intervals import ints


@pytest.mark.parametrize(
    ("numbers", "rows", "first"),
    [
        pytest.param([[1, 2], [1, 2]], [0, 2, 1, 3], [0, 2], id="all ranks call the same"),
        pytest.param([[1, 2, 4], [2, 3, 4]], [0, 1, 3, 4, 2, 5], [0, 1, 3, 4], id="some lack some"),
        pytest.param([[2, 1], [1, 2]], [1, 2, 0, 3], [0, 2], id="in another order"),
        pytest.param([[2, 1], [2, 1]], [1, 3, 0, 2], [0, 2], id="all in another order"),
        pytest.param(
            [[5, 5, 7], [5, 7, 7]], [0, 3, 1, 2, 4, 5], [0, 2, 3, 5], id="the same number again"
        ),
        pytest.param([[5, 5], [5, 5]], [0, 2, 1, 3], [0, 2], id="on all ranks"),
    ],
)
def test_rows_stand_by_call_and_then_by_rank(
    numbers: list[list[int]], rows: list[int], first: list[int]
) -> None:
    found, begins = by_number([ints(one) for one in numbers])
    assert (found.tolist(), begins.tolist()) == (rows, first)
