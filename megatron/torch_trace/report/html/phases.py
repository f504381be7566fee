# SPDX-License-Identifier: Apache-2.0
"""Phases of the training loop, and micro-batches one by one."""

from __future__ import annotations

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.schedule.microbatches import MicrobatchRow
from megatron.torch_trace.analysis.schedule.phases import PhaseRow
from megatron.torch_trace.report.stages import first_and_last
from megatron.torch_trace.report.tables import (
    Cell,
    Column,
    Row,
    Section,
    Table,
    at,
    ms,
    number,
    rank_cell,
    share,
    text,
)
from megatron.torch_trace.wording import NONE, count, ranks

_MOST = 300
_OF_THE_CPU = 5
"""Columns of phases that tell of the CPU."""
_PASSES = ("forward", "backward")


def section(analysis: Analysis) -> Section:
    """Of the first and the last stage."""
    shown = first_and_last(analysis, lambda rank: rank.phases)
    if not shown:
        return Section(
            "phases",
            "Phases",
            "the traces have no spans of phases (--torch-profile-spans phases)",
        )
    of = shown[0].name if len(shown) == 1 else f"ranks {ranks(tuple(r.rank for r in shown))}"
    gpu = not analysis.is_of_the_cpu
    data = {
        "table": _phases(shown, of, gpu),
        "microbatches": _microbatches(shown, of, gpu),
        "one_stage_of_many": len(shown) < len(analysis.ranks),
        "of": of,
    }
    return Section("phases", "Phases", data=data)


def _phases(shown: tuple[RankResult, ...], of: str, gpu: bool) -> Table:
    columns = (
        Column("phase", number=False),
        Column("rank"),
        Column("calls"),
        Column("CPU ms", hint="union of its spans on the training loop's thread"),
        Column("of window"),
        Column("GPU work ms", hint="launched meanwhile; it may run later"),
        Column("kernels"),
        Column("exposed comm ms", hint="of the GPU work"),
    )
    rows = [(rank, row) for rank in shown for row in rank.phases]
    kept = len(columns) if gpu else _OF_THE_CPU
    cells = tuple(Row(_phase(rank, row)[:kept], at(rank.rank, row.longest)) for rank, row in rows)
    caption = f"Phases; they nest, so they do not add up; {of}"
    return Table("loop", caption, columns[:kept], cells)


def _phase(rank: RankResult, row: PhaseRow) -> tuple[Cell, ...]:
    return (
        text(row.phase),
        rank_cell(rank),
        number(row.calls, count(row.calls)),
        ms(row.time_ns),
        share(row.share),
        ms(row.gpu_ns),
        number(row.kernels, count(row.kernels)),
        ms(row.exposed_communication_ns),
    )


def _microbatches(shown: tuple[RankResult, ...], of: str, gpu: bool) -> Table | None:
    rows = [
        _microbatch(rank, row, direction)
        for rank in shown
        for row in rank.microbatches
        for direction in _PASSES
        if getattr(row, f"{direction}_ns") is not None
    ]
    if not rows:
        return None
    columns: tuple[Column, ...] = (
        Column("micro-batch"),
        Column("pass", number=False),
        Column("rank"),
        Column("step"),
        Column("in 1F1B", number=False),
        Column("CPU ms"),
        Column("GPU work ms", hint="sum of what was launched meanwhile"),
    )
    more = len(rows) - _MOST
    if more > 0:
        rows = sorted(rows, key=lambda row: -(row.cells[5].sort or 0))[:_MOST]
    rest = f"The longest on the CPU; {more:,} more are in analyze --json." if more > 0 else ""
    if not gpu:
        columns = columns[:-1]
        rows = [Row(row.cells[:-1], row.at) for row in rows]
    return Table("microbatches", f"Micro-batches, {of}", columns, tuple(rows), rest)


def _microbatch(rank: RankResult, row: MicrobatchRow, direction: str) -> Row:
    name = NONE if row.number is None else str(row.number)
    if row.chunk is not None:
        name += f".{row.chunk}"
    cells = (
        Cell(name, sort=row.number),
        text(direction),
        rank_cell(rank),
        number(row.step, str(row.step)),
        text(getattr(row, f"{direction}_place") or NONE),
        ms(getattr(row, f"{direction}_ns")),
        ms(getattr(row, f"{direction}_gpu_ns")),
    )
    return Row(cells, at(rank.rank, getattr(row, f"{direction}_on_gpu")))
