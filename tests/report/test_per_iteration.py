# SPDX-License-Identifier: Apache-2.0
"""What adds up over a window is told by iteration, the window's total beside it."""

from __future__ import annotations

from megatron.torch_trace.report.per_iteration import in_an_iteration
from megatron.torch_trace.report.tables import Cell, Column, Row, Table, amount, ms, some_ms, text

COLUMNS = (
    Column("kernel", number=False),
    Column("calls", sums="count"),
    Column("window ms", brief="window", sums="ms"),
    Column("bytes", sums="bytes"),
    Column("mean us"),
)


def of(*cells: Cell) -> Table:
    return Table("kernels", "Kernels", COLUMNS, (Row(cells),), brief="KERNELS (ms, mean of 4)")


def test_sums_are_divided_and_means_are_not() -> None:
    table = of(text("gemm"), amount(6), ms(4_000_000), Cell("2 kB", sort=2000), Cell("667"))
    found = in_an_iteration(table, 2)
    assert [column.title for column in found.columns] == [
        "kernel", "calls", "iteration ms", "window ms", "bytes", "mean us"
    ]  # fmt: skip
    assert [cell.text for cell in found.rows[0].cells] == [
        "gemm", "3", "2.00", "4.00", "1 kB", "667"
    ]  # fmt: skip
    assert found.caption == "Kernels, in an iteration"
    assert found.brief == "KERNELS (ms an iteration, mean of 4)"


def test_the_window_s_total_is_not_for_a_terminal() -> None:
    found = in_an_iteration(of(text("gemm"), amount(6), ms(4), Cell("-"), Cell("1")), 2)
    assert [column.title for column in found.columns if column.brief is None] == ["window ms"]


def test_calls_that_differ_by_step_are_a_mean_and_nothing_stays_nothing() -> None:
    found = in_an_iteration(of(text("gemm"), amount(3), some_ms(None), Cell("-"), Cell("1")), 2)
    assert [cell.text for cell in found.rows[0].cells][1:4] == ["1.5", "-", "-"]


def test_a_table_without_sums_is_as_it_was() -> None:
    table = Table("steps", "Steps", (Column("ms"),), (Row((ms(5),)),))
    assert in_an_iteration(table, 2) is table
