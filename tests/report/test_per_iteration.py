# SPDX-License-Identifier: Apache-2.0
"""What adds up over a window is told by iteration, the window's total beside it."""

from __future__ import annotations

from pathlib import Path

from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.report.per_iteration import in_an_iteration, steps_by_rank
from megatron.torch_trace.report.tables import Cell, Column, Row, Table, amount, ms, some_ms, text
from megatron.torch_trace.report.text import render

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
    found = in_an_iteration(table, {0: 2})
    assert [column.title for column in found.columns] == [
        "kernel", "calls", "iteration ms", "window ms", "bytes", "mean us"
    ]  # fmt: skip
    assert [cell.text for cell in found.rows[0].cells] == [
        "gemm", "3", "2.00", "4.00", "1 kB", "667"
    ]  # fmt: skip
    assert found.caption == "Kernels, in an iteration"
    assert found.brief == "KERNELS (ms an iteration, mean of 4)"


def test_the_window_s_total_is_not_for_a_terminal() -> None:
    found = in_an_iteration(of(text("gemm"), amount(6), ms(4), Cell("-"), Cell("1")), {0: 2})
    assert [column.title for column in found.columns if column.brief is None] == ["window ms"]


def test_calls_that_differ_by_step_are_a_mean_and_nothing_stays_nothing() -> None:
    found = in_an_iteration(
        of(text("gemm"), amount(3), some_ms(None), Cell("-"), Cell("1")), {0: 2}
    )
    assert [cell.text for cell in found.rows[0].cells][1:4] == ["1.5", "-", "-"]


def test_a_table_without_sums_is_as_it_was() -> None:
    table = Table("steps", "Steps", (Column("ms"),), (Row((ms(5),)),))
    assert in_an_iteration(table, {0: 2}) is table


def test_a_row_of_a_rank_is_divided_by_the_steps_of_that_rank() -> None:
    columns = (Column("rank"), Column("ms", sums="ms"))
    rows = tuple(Row((Cell(str(rank), sort=rank), ms(12_000_000))) for rank in (0, 1))
    found = in_an_iteration(Table("idle", "Idle", columns, rows), {0: 3, 1: 2})
    assert [[cell.text for cell in row.cells] for row in found.rows] == [
        ["0", "4.00", "12.0"],
        ["1", "6.00", "12.0"],
    ]
    assert found.columns[2].hint == "in all steps of the rank"


def test_a_table_of_one_rank_is_divided_by_its_steps_and_a_mean_by_theirs() -> None:
    table = Table("tree", "Modules", (Column("ms", sums="ms"),), (Row((ms(12_000_000),)),), rank=1)
    assert in_an_iteration(table, {0: 4, 1: 2}).rows[0].cells[0].text == "6.00"
    of_all = Table("kernels", "Kernels", table.columns, table.rows)
    assert in_an_iteration(of_all, {0: 4, 1: 2}).rows[0].cells[0].text == "4.00"


def test_the_iteration_of_a_rank_that_was_ended_early_is_as_long_as_its_own_steps(
    tmp_path: Path,
) -> None:
    for rank, count in ((0, 3), (1, 2)):
        trace = TraceBuilder(rank, 2)
        for step in range(count):
            begin = step * 1_000_000
            trace.step(step + 1, begin, begin + 1_000_000)
            trace.gpu(GEMM, begin + 100_000, begin + 700_000, launch=begin + 50_000)
        trace.write(tmp_path / f"rank-{rank}.json")
    analysis = analyze(tmp_path, jobs=1)
    assert steps_by_rank(analysis) == {0: 3, 1: 2}
    lines = [line.split() for line in render(analysis).splitlines()]
    start = next(n for n, line in enumerate(lines) if line[:1] == ["rank"])
    # Rank, an iteration, compute, exposed communication and copies, idle, busy.
    for row, rank in zip(lines[start + 1 : start + 3], "01", strict=True):
        assert row == [rank, "1.00", "0.60", "0", "0", "0.40", "60", "%"]
