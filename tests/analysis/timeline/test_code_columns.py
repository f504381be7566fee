# SPDX-License-Identifier: Apache-2.0
"""Columns of codes in parts, as thousands of ranks have them."""

from __future__ import annotations

import numpy as np
import pytest

from megatron.torch_trace.analysis.timeline import code_columns
from megatron.torch_trace.columns.intervals import ints

VALUES = ints([30, 10, 20])
COLUMN = np.array([0, 1, 2, 2, 1, 0, 0, 2], dtype=np.uint16)
FIRST = ints([0, 1, 6])


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
def test_runs_are_reduced_whole_however_many_rows_are_looked_at_together(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(code_columns, "_AT_ONCE", rows)
    assert code_columns.reduce_by_code(np.minimum, VALUES, COLUMN, FIRST).tolist() == [30, 10, 20]
    assert code_columns.reduce_by_code(np.maximum, VALUES, COLUMN, FIRST).tolist() == [30, 30, 30]


@pytest.mark.parametrize("rows", [1, 3, 8, 100])
def test_what_codes_stand_for_is_added_and_taken_away_row_by_row(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(code_columns, "_AT_ONCE", rows)
    found = np.arange(8)
    code_columns.add_by_code(np.arange(8), VALUES, COLUMN, found)
    assert found.tolist() == [30, 11, 22, 23, 14, 35, 36, 27]
    code_columns.subtract_by_code(found, VALUES, COLUMN)
    assert found.tolist() == list(range(8))
